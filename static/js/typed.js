// Keep what was typed into a form that did not arrive: the session had expired, the server was busy
// or broken, or the connection was lost. This tab keeps the form when it is left, without passwords
// and tokens. The server names in a cookie the form that it has taken (`arrivals.py`), and the entry
// is dropped. Otherwise the page is filled in again, once.
(() => {
  const [KEPT, PLACE] = ["kant-typed", "kant-typed-place"];
  const LASTS = 12 * 3600 * 1000;
  const SECRET = /passw|token|(^|-)secret$/i;
  const NUMBER = "arrival";
  const { user, method } = document.body.dataset;
  const here = location.pathname + location.search;
  const kept = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  const keep = (entry) => sessionStorage.setItem(KEPT, JSON.stringify(entry));
  const drop = () => sessionStorage.removeItem(KEPT);
  const pathOf = (address) => new URL(address, location.href).pathname;
  const actionOf = (form) => pathOf(form.getAttribute("action") || here);

  // --- pages in place of an answer: sign-in pages, and those that say that Kant could not answer ---
  const stop = document.querySelector("[data-signs-in], [data-failed]");
  if (stop) {
    const entry = kept();
    if (!entry) return;
    keep({ ...entry, why: entry.why ?? (stop.matches("[data-signs-in]") ? "signed out" : "failed") });
    if (!entry.sent) return;
    // Not to an address that only accepts forms.
    for (const link of stop.querySelectorAll("[data-way-back]")) {
      if (link.matches("input")) link.value = entry.place;
      else if (link.dataset.wayBack) link.href = `${link.dataset.wayBack}?next=${encodeURIComponent(entry.place)}`;
      else link.href = entry.place;
      if (link.dataset.wayBackText) link.textContent = link.dataset.wayBackText;
    }
    return;
  }
  if (!user) return;
  if (method === "GET") sessionStorage.setItem(PLACE, here);

  // --- keeping ---
  const isShown = (field) => field.name && !field.matches("[type=hidden], button, [type=submit]");
  const isKept = (field) => !field.matches(`[type=password], [type=file], [name=csrfmiddlewaretoken], [name=${NUMBER}]`)
    && !SECRET.test(field.name);
  const isTyped = (field) => (field.matches("[type=checkbox], [type=radio]")
    ? field.checked !== field.defaultChecked
    : field.matches("select")
      ? [...field.options].some((one) => one.selected !== one.defaultSelected) && field.selectedIndex > 0
      : field.value !== field.defaultValue);
  // drafts.js keeps quota drafts; a person who signs out wants nothing kept.
  const isDraft = (form) => form.matches("[data-draft]");
  const isOurs = (form) => form.method === "post" && !isDraft(form) && !form.matches("[data-signs-out]");

  const remember = (form, sent) => {
    const fields = isDraft(form) ? [] : [...new FormData(form)].filter(([name, value]) => typeof value === "string"
      && [...form.elements].some((field) => field.name === name && isKept(field)));
    keep({
      user, sent, fields, draft: isDraft(form), page: location.pathname, action: actionOf(form),
      place: method === "GET" ? here : sessionStorage.getItem(PLACE) ?? "/",
      again: form.dataset.again ?? null, as: form.dataset.againAs ?? null, at: Date.now(),
    });
  };

  // The number by which the server confirms a form. crypto.randomUUID exists in secure contexts
  // only.
  const numbered = (form) => {
    const number = [...crypto.getRandomValues(new Uint8Array(16))]
      .map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const field = form.querySelector(`[name=${NUMBER}]`)
      ?? form.appendChild(Object.assign(document.createElement("input"), { type: "hidden", name: NUMBER }));
    field.value = number;
    return number;
  };

  let left = false;
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    left = true;
    if (isOurs(form) || isDraft(form)) {
      remember(form, true);
      keep({ ...kept(), number: numbered(form) });
    } else drop();
  });
  addEventListener("pagehide", () => {
    if (left) return;
    const form = [...document.forms].find((one) => isOurs(one)
      && [...one.elements].some((field) => isShown(field) && isKept(field) && isTyped(field)));
    if (form) remember(form, false);
  });

  // --- restoring ---
  const tell = (text) => {
    const notice = document.getElementById("typed-notice").content.firstElementChild.cloneNode(true);
    notice.querySelector("div").textContent = text;
    document.getElementById("main").prepend(notice);
  };
  const UNSURE = "It is not known whether what you sent last has arrived.";
  const TOLD = {
    "signed out": [
      "Your sign-in ended before this was sent. Nothing was changed. What you typed is in the form again.",
      "Your sign-in ended before this was sent. Nothing was changed. Do it again if you still want it.",
    ],
    sent: [
      `${UNSURE} What you typed is in the form again. Look whether it is already there before you send it again.`,
      `${UNSURE} Look whether it was done, and do it again if it was not.`,
    ],
    typed: ["Kant could not be reached. What you typed is in the form again.", ""],
  };
  const toldOf = ({ why, sent }) => TOLD[why === "signed out" ? why : sent ? "sent" : "typed"];

  // The server renders the page. Keep the entry until that page has arrived, too.
  const redraw = (entry) => {
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: entry.again, hidden: true });
    const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
    const fields = [...entry.fields, ["csrfmiddlewaretoken", token]];
    for (const [name, value] of entry.as ? [...fields, [entry.as, "1"]] : fields) {
      form.append(Object.assign(document.createElement("textarea"), { name, value }));
    }
    keep({ ...entry, number: numbered(form), told: toldOf(entry)[0] });
    document.body.append(form);
    left = true;
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
      redraw(entry);
      return;
    }
    const form = [...document.forms].find((one) => isOurs(one) && actionOf(one) === entry.action
      && entry.fields.every(([name]) => one.elements[name]));
    if (!form && here !== entry.place) return;  // perhaps on a later page
    drop();
    const shown = form ? fill(form, entry.fields) : 0;
    if (shown > 0 && form.closest("dialog:not([open])")) form.closest("dialog").showModal();
    const text = toldOf(entry)[shown > 0 ? 0 : 1];
    if (text) tell(text);
  };

  const hasArrived = ({ number }) => {
    const name = `kant-arrived-${number}`;
    const arrived = document.cookie.split("; ").some((one) => one.startsWith(`${name}=`));
    if (arrived) document.cookie = `${name}=; path=/; max-age=0`;
    return arrived;
  };

  // A page that the browser's history restores as it was left. A page that has just loaded is not
  // such a page: it may be about to be rendered again.
  addEventListener("pageshow", ({ persisted }) => {
    if (!persisted) return;
    left = false;
    const back = kept();
    if (!back || back.draft || back.page !== location.pathname) return;
    if (!hasArrived(back)) tell(toldOf(back)[0]);
    drop();
  });

  const entry = kept();
  if (!entry) return;
  if (hasArrived(entry)) {
    drop();
    if (entry.told) tell(entry.told);
    // For drafts.js.
    document.body.dataset.arrived = entry.action;
  } else if (entry.draft || entry.user !== user || Date.now() - entry.at > LASTS) drop();
  else if (entry.sent || entry.why) bring(entry);
  else drop();
})();
