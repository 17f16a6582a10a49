// Edits of the quota matrix outlive the page: a sign-in that is over, a reload, a lost connection.
// They are kept in this tab alone, for the reader alone, until they are saved or discarded.
(() => {
  const form = document.querySelector("form[data-draft]");
  if (!form) return;
  const KEY = `kant-draft ${location.pathname} ${form.dataset.draft}`;
  const cells = () => [...form.querySelectorAll("input[data-now]")];
  const versionOf = (cell) => form.elements[cell.name.replace(/^q-/, "v-")];
  const edited = (cell) => cell.value.trim() !== cell.dataset.now;

  const stored = () => JSON.parse(sessionStorage.getItem(KEY) ?? "null") ?? { reason: "", cells: {} };

  const store = (draft) => {
    if (draft.reason || Object.keys(draft.cells).length) {
      sessionStorage.setItem(KEY, JSON.stringify(draft));
    } else {
      sessionStorage.removeItem(KEY);
    }
  };

  // Edits of cells that this page does not show: of other tenants or GPU types.
  const elsewhere = () => {
    const here = new Set(cells().map((cell) => cell.name));
    return Object.fromEntries(Object.entries(stored().cells).filter(([name]) => !here.has(name)));
  };

  const tellElsewhere = () => {
    const count = Object.keys(elsewhere()).length;
    const notice = document.getElementById("draft-elsewhere");
    notice.hidden = !count;
    notice.querySelector("[data-count]").textContent = count === 1 ? "1 edit is" : `${count} edits are`;
  };

  const keep = () => {
    const draft = { reason: form.elements.reason?.value ?? "", cells: elsewhere() };
    for (const cell of cells().filter(edited)) {
      draft.cells[cell.name] = [cell.value, versionOf(cell).value];
    }
    store(draft);
  };

  // A draft that was saved differs from the page in its versions alone. One that somebody else
  // overtook comes back with the version it was typed over, so that the check tells of the conflict.
  const restore = () => {
    const draft = stored();
    tellElsewhere();
    let restored = 0;
    for (const cell of cells()) {
      const [value, version] = draft.cells[cell.name] ?? [cell.value];
      const same = value.trim() !== "" && Number(value) === Number(cell.dataset.now || NaN);
      if (version === undefined || same || value.trim() === cell.dataset.now) continue;
      cell.value = value;
      versionOf(cell).value = version;
      restored += 1;
    }
    if (restored) {
      form.elements.reason.value = draft.reason;
      document.getElementById("draft-back").hidden = false;
      document.getElementById("matrix").dispatchEvent(new Event("change", { bubbles: true }));
    } else {
      keep();
    }
  };

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-discard]")) store({ reason: "", cells: elsewhere() });
  });
  form.addEventListener("input", keep);
  form.addEventListener("submit", keep);
  // What the server gave back to be mended is newer than the draft.
  if (form.hasAttribute("data-returned")) {
    keep();
    tellElsewhere();
  } else document.addEventListener("DOMContentLoaded", () => setTimeout(restore));
})();
