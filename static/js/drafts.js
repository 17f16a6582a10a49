// Each check saves edits of the quota matrix in the reader's draft. This tab keeps edits that no
// check has brought to the server yet (expired session, lost connection) until one does.
(() => {
  const form = document.querySelector("form[data-draft]");
  if (!form) return;
  const KEY = `kant-draft ${location.pathname} ${form.dataset.draft}`;
  const TAB = "kant-draft-tab";
  // Fields applied together with the cells. Checks do not send the times.
  const BESIDE = ["reason", "starts_at", "ends_at"];
  const cells = () => [...form.querySelectorAll("input[data-now]")];
  const versionOf = (cell) => form.elements[cell.name.replace(/^q-/, "v-")];
  const edited = (cell) => cell.value.trim() !== cell.dataset.now;

  const empty = () => ({ cells: {}, beside: {} });
  const stored = () => JSON.parse(sessionStorage.getItem(KEY) ?? "null") ?? empty();

  const store = (draft) => {
    const some = Object.keys(draft.cells).length + Object.keys(draft.beside).length > 0;
    if (some) sessionStorage.setItem(KEY, JSON.stringify(draft));
    else sessionStorage.removeItem(KEY);
    form.toggleAttribute("data-unsent", some);
  };

  // Number each write of a tab: if two requests overtake each other, the later write counts.
  // crypto.randomUUID exists in secure contexts only.
  const tab = sessionStorage.getItem(TAB)
    ?? [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16)).join("").slice(0, 32);
  sessionStorage.setItem(TAB, tab);
  let stamp = 0;
  const stamped = () => {
    stamp = Math.max(stamp + 1, Date.now());
    return String(stamp);
  };

  // Mark each touched cell as possibly in the draft, so that it leaves the draft when it is set back
  // to the current quota.
  const touched = (field) => {
    const box = field.closest(".cell-k");
    if (!box || box.querySelector("input[name=marked]")) return;
    const mark = Object.assign(document.createElement("input"), { type: "hidden", name: "marked" });
    mark.value = field.name.replace(/^q-/, "");
    box.prepend(mark);
  };

  const note = (field) => {
    const draft = stored();
    if (field.matches("input[data-now]")) {
      draft.cells[field.name] = [field.value, versionOf(field).value];
      touched(field);
    } else if (BESIDE.includes(field.name)) draft.beside[field.name] = field.value;
    store(draft);
  };

  // Only edits since the last check: another tab may have written newer values for the rest.
  const fresh = () => Object.keys(stored().cells).map((name) => name.replace(/^q-/, "")).join(" ");

  // A checked edit is on the server, unless the cell was edited again meanwhile.
  const sent = new WeakMap();
  let isLeaving = false;
  addEventListener("pageshow", () => { isLeaving = false; });
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement.closest("form") !== form) return;
    // A pending check would write into the draft what is being saved.
    if (isLeaving) {
      event.preventDefault();
      return;
    }
    ctx.request.body.set("tab", tab);
    ctx.request.body.set("stamp", stamped());
    ctx.request.body.set("fresh", fresh());
    sent.set(ctx, stored());
  });
  document.addEventListener("htmx:after:swap", (event) => {
    const { ctx } = event.detail;
    const was = sent.get(ctx);
    if (!was || ctx.response.status >= 400 || form.querySelector("[data-not-kept]")) return;
    const draft = stored();
    for (const [name, [value]] of Object.entries(was.cells)) {
      if (draft.cells[name]?.[0] === value) delete draft.cells[name];
    }
    if (draft.beside.reason === was.beside.reason) delete draft.beside.reason;
    store(draft);
  });

  // Unsent edits override what the server has kept, even if they equal the current quota: the draft
  // may have an earlier edit.
  const restore = () => {
    const draft = stored();
    let restored = 0;
    for (const cell of cells()) {
      const [value, version] = draft.cells[cell.name] ?? [];
      if (value === undefined) continue;
      if (value === cell.value) {
        delete draft.cells[cell.name];
        continue;
      }
      cell.value = value;
      versionOf(cell).value = version;
      touched(cell);
      restored += 1;
    }
    for (const [name, text] of Object.entries(draft.beside)) {
      const field = form.elements[name];
      if (field.value === text) continue;
      field.value = text;
      field.closest("details")?.setAttribute("open", "");
      restored += 1;
    }
    store(draft);
    if (restored) document.getElementById("draft-back").hidden = false;
    // A check also reports problems with tenants in the draft.
    if (restored || cells().some(edited) || form.elements.placed) {
      document.getElementById("matrix").dispatchEvent(new Event("change", { bubbles: true }));
    }
  };

  form.addEventListener("input", (event) => note(event.target));
  const stampForm = ({ target }) => {
    isLeaving = true;
    for (const [name, value] of [["tab", tab], ["stamp", stamped()], ["fresh", fresh()]]) {
      const field = target.elements[name] ?? target.appendChild(
        Object.assign(document.createElement("input"), { type: "hidden", name }),
      );
      field.value = value;
    }
  };
  form.addEventListener("submit", (event) => {
    stampForm(event);
    const draft = stored();
    for (const name of BESIDE) if (form.elements[name].value) draft.beside[name] = form.elements[name].value;
    store(draft);
  });
  document.getElementById("discard-form").addEventListener("submit", (event) => {
    stampForm(event);
    store(empty());
  });
  // Edits that the server returned for correction are kept there, or the page says that they are not.
  // Applied edits are no longer edits.
  if (form.hasAttribute("data-returned")) {
    if (!form.querySelector("[data-not-kept]")) store(empty());
    return;
  }
  if (document.body.dataset.arrived === location.pathname) store(empty());
  document.addEventListener("DOMContentLoaded", () => setTimeout(restore));
})();

// Each cell also shows who else is about to change the quota.
(() => {
  const list = document.getElementById("editors");
  if (!list) return;
  const show = () => {
    const told = new Map();
    for (const one of list.querySelectorAll("[data-editor]")) {
      for (const [key, typed] of Object.entries(JSON.parse(one.dataset.cells))) {
        const text = `${one.dataset.editor} is editing this: ${typed || "nothing"}`;
        told.set(key, told.has(key) ? `${told.get(key)}; ${text}` : text);
      }
    }
    for (const cell of document.querySelectorAll("#matrix td.cell")) {
      const box = cell.querySelector(".cell-k");
      const text = told.get(cell.id.replace(/^cell-/, ""));
      let place = box.querySelector(".editing");
      if (!text) place?.remove();
      else {
        place ??= box.appendChild(Object.assign(document.createElement("div"), { className: "editing" }));
        if (place.textContent !== text) place.textContent = text;
      }
    }
  };
  document.addEventListener("DOMContentLoaded", show);
  document.addEventListener("htmx:after:swap", show);
})();
