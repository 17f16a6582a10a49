// What was typed into a form is not lost where the sign-in had ended before it was sent. The form
// that is left is kept in this tab, without passwords and tokens. If the next page asks to sign in,
// it is filled in again afterwards, once; any other page shows that it arrived, and drops it.
(() => {
  const [KEPT, PLACE, TOLD] = ["kant-typed", "kant-typed-place", "kant-typed-told"];
  const LASTS = 12 * 3600 * 1000;
  const SECRET = /passw|token|(^|-)secret$/i;
  const { user, method } = document.body.dataset;
  const here = location.pathname + location.search;
  const kept = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  const keep = (entry) => sessionStorage.setItem(KEPT, JSON.stringify(entry));
  const drop = () => sessionStorage.removeItem(KEPT);
  const pathOf = (address) => new URL(address, location.href).pathname;
  const actionOf = (form) => pathOf(form.getAttribute("action") || here);

  // --- pages that ask to sign in ---
  const asks = document.querySelector("[data-signs-in]");
  if (asks) {
    const entry = kept();
    if (!entry) return;
    keep({ ...entry, lost: true });
    if (!entry.sent) return;
    // Not to an address that only takes a form.
    for (const link of asks.querySelectorAll("[data-way-back]")) {
      if (link.matches("input")) link.value = entry.place;
      else if (link.dataset.wayBack) link.href = `${link.dataset.wayBack}?next=${encodeURIComponent(entry.place)}`;
      else link.href = entry.place;
    }
    return;
  }
  if (!user) return;
  if (method === "GET") sessionStorage.setItem(PLACE, here);

  // --- what is kept ---
  const isShown = (field) => field.name && !field.matches("[type=hidden], button, [type=submit]");
  const isKept = (field) => !field.matches("[type=password], [type=file], [name=csrfmiddlewaretoken]")
    && !SECRET.test(field.name);
  const isTyped = (field) => (field.matches("[type=checkbox], [type=radio]")
    ? field.checked !== field.defaultChecked
    : field.matches("select")
      ? [...field.options].some((one) => one.selected !== one.defaultSelected) && field.selectedIndex > 0
      : field.value !== field.defaultValue);
  // Drafts of quotas have a keeper of their own; who signs out means it.
  const isOurs = (form) => form.method === "post" && !form.matches("[data-draft], [data-signs-out]");

  const remember = (form, sent) => {
    const fields = [...new FormData(form)].filter(([name, value]) => typeof value === "string"
      && [...form.elements].some((field) => field.name === name && isKept(field)));
    keep({
      user, sent, fields, page: location.pathname, action: actionOf(form),
      place: method === "GET" ? here : sessionStorage.getItem(PLACE) ?? "/",
      again: form.dataset.again ?? null, as: form.dataset.againAs ?? null, at: Date.now(),
    });
  };

  let left = false;
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    left = true;
    if (isOurs(form)) remember(form, true);
    else drop();
  });
  addEventListener("pageshow", () => { left = false; });
  addEventListener("pagehide", () => {
    if (left) return;
    const form = [...document.forms].find((one) => isOurs(one)
      && [...one.elements].some((field) => isShown(field) && isKept(field) && isTyped(field)));
    if (form) remember(form, false);
  });

  // --- what comes back ---
  const tell = (text) => {
    const notice = document.getElementById("typed-notice").content.firstElementChild.cloneNode(true);
    notice.querySelector("div").textContent = text;
    document.getElementById("main").prepend(notice);
  };
  const BACK = "Your sign-in ended before this was sent. Nothing was changed. What you typed is in the form again.";
  const UNDONE = "Your sign-in ended before this was sent. Nothing was changed. Do it again if you still want it.";

  const redraw = (entry) => {
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: entry.again, hidden: true });
    const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
    const fields = [...entry.fields, ["csrfmiddlewaretoken", token]];
    for (const [name, value] of entry.as ? [...fields, [entry.as, "1"]] : fields) {
      form.append(Object.assign(document.createElement("textarea"), { name, value }));
    }
    document.body.append(form);
    sessionStorage.setItem(TOLD, "1");
    HTMLFormElement.prototype.submit.call(form);
  };

  const fill = (form, fields) => {
    const values = new Map();
    for (const [name, value] of fields) values.set(name, [...values.get(name) ?? [], value]);
    let shown = 0;
    for (const field of form.elements) {
      if (!field.name || !isKept(field) || field.matches("button, fieldset, [type=submit]")) continue;
      const given = values.get(field.name) ?? [];
      if (field.matches("[type=checkbox], [type=radio]")) field.checked = given.includes(field.value);
      else if (field.matches("select[multiple]")) for (const one of field.options) one.selected = given.includes(one.value);
      else if (given.length) field.value = given.shift();
      if (!isShown(field)) continue;
      shown += 1;
      if (!isTyped(field)) continue;
      for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
      field.closest("details")?.setAttribute("open", "");
    }
    return shown;
  };

  const bring = (entry) => {
    if (entry.again) {
      drop();
      redraw(entry);
      return;
    }
    const form = [...document.forms].find((one) => isOurs(one) && actionOf(one) === entry.action
      && entry.fields.every(([name]) => one.elements[name]));
    if (!form && here !== entry.place) return;  // perhaps on a page that is yet to come
    drop();
    const shown = form ? fill(form, entry.fields) : 0;
    if (shown > 0 && form.closest("dialog:not([open])")) form.closest("dialog").showModal();
    tell(shown > 0 ? BACK : UNDONE);
  };

  if (sessionStorage.getItem(TOLD)) {
    sessionStorage.removeItem(TOLD);
    tell(BACK);
  }
  const entry = kept();
  if (entry?.lost && entry.user === user && Date.now() - entry.at < LASTS) bring(entry);
  else drop();
})();
