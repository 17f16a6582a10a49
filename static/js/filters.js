// Filters apply themselves; without script their button does. A person who keeps typing while the
// answer is on its way continues in the new page, which has the text and the cursor position.
(() => {
  const KEPT = "kant-filters";
  const forms = [...document.querySelectorAll("form[data-autosubmit]")];
  const isFilter = (field) => field.name && !field.matches("[type=hidden], button, [type=submit]");
  const left = new Map(); // form that was sent -> the values of its fields

  const valuesOf = (form) => Object.fromEntries(
    [...form.elements].filter(isFilter).map((field) => [field.name, field.value]),
  );

  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-autosubmit]");
    if (form && event.target.type !== "search") form.requestSubmit();
  });
  document.addEventListener("submit", ({ target }) => {
    if (forms.includes(target)) left.set(target, valuesOf(target));
  });

  // Leave empty filters out of the address. Do not change the fields: somebody may be typing in
  // them.
  document.addEventListener("formdata", ({ target, formData }) => {
    if (!forms.includes(target)) return;
    const given = [...formData].filter(([, value]) => value !== "");
    for (const name of new Set(formData.keys())) formData.delete(name);
    for (const [name, value] of given) formData.append(name, value);
  });

  addEventListener("pagehide", () => {
    for (const [form, sent] of left) {
      const typed = Object.entries(valuesOf(form)).filter(([name, text]) => text !== sent[name]);
      const at = document.activeElement;
      const focus = form.contains(at) && isFilter(at) ? at.name : null;
      const entry = { path: location.pathname, form: forms.indexOf(form), typed, focus };
      sessionStorage.setItem(KEPT, JSON.stringify(entry));
    }
    left.clear();
  });

  // Show the filters of this page, not those chosen when it was left.
  addEventListener("pageshow", ({ persisted }) => {
    if (persisted) for (const form of forms) form.reset();
  });

  const entry = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  sessionStorage.removeItem(KEPT);
  const form = entry?.path === location.pathname ? forms[entry.form] : null;
  if (!form) return;
  const shown = (name) => {
    const field = form.elements[name];
    field?.closest?.("details")?.setAttribute("open", "");
    return field;
  };
  for (const [name, text] of entry.typed) {
    const field = shown(name);
    if (!field) continue;
    field.value = text;
    if (field.type === "search") continue;
    // The browser fires a change event only for typed input.
    field.addEventListener("blur", () => {
      if (field.value !== field.defaultValue) form.requestSubmit();
    }, { once: true });
  }
  const field = entry.focus && shown(entry.focus);
  if (!field) return;
  field.focus({ preventScroll: true });
  if (field.matches("input")) field.setSelectionRange?.(field.value.length, field.value.length);
})();
