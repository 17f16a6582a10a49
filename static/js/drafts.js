// Edits of the quota matrix are kept in the reader's draft by each check. What no check has brought
// to the server yet (a sign-in that is over, a lost connection) is kept in this tab until one does.
(() => {
  const form = document.querySelector("form[data-draft]");
  if (!form) return;
  const KEY = `kant-draft ${location.pathname} ${form.dataset.draft}`;
  const TAB = "kant-draft-tab";
  // What is applied with the cells. No check brings the times to the server.
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

  // Which write of which tab a request is: of two that overtake each other the later one counts.
  // Crypto's own ids are there in secure contexts alone.
  const tab = sessionStorage.getItem(TAB)
    ?? [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16)).join("").slice(0, 32);
  sessionStorage.setItem(TAB, tab);
  let stamp = 0;
  const stamped = () => {
    stamp = Math.max(stamp + 1, Date.now());
    return String(stamp);
  };

  // A cell that was touched is sent as one that may be in the draft, so that it leaves it when it
  // says again what the quota is.
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

  // What was typed since the last check: of the rest another tab may have written something newer.
  const fresh = () => Object.keys(stored().cells).map((name) => name.replace(/^q-/, "")).join(" ");

  // What a check brought is on the server, unless it was typed anew meanwhile.
  const sent = new WeakMap();
  let isLeaving = false;
  addEventListener("pageshow", () => { isLeaving = false; });
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement.closest("form") !== form) return;
    // A check that was still to come would write into the draft what is being saved.
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

  // What is not sent yet goes over what the server has kept, also where it says again what the quota
  // is: the draft may have what was typed before.
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
    // Also what stands against tenants in the draft is told by a check.
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
  // What the server gave back to be mended it has kept, or says that it has not. What it has applied
  // is no edit any more.
  if (form.hasAttribute("data-returned")) {
    if (!form.querySelector("[data-not-kept]")) store(empty());
    return;
  }
  if (document.body.dataset.arrived === location.pathname) store(empty());
  document.addEventListener("DOMContentLoaded", () => setTimeout(restore));
})();

// Who else is about to change a quota is told in its cell, too.
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
