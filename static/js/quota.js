// Keyboard use of the quota matrix: Enter and the arrows move down and up, like in a spreadsheet. A
// button discards the edit of a cell that somebody else has changed meanwhile.
(() => {
  const STEP = { Enter: 1, ArrowDown: 1, ArrowUp: -1 };

  document.addEventListener("keydown", (event) => {
    const step = STEP[event.key];
    if (!step || !event.target.matches(".matrix input")) return;
    event.preventDefault();
    const column = event.target.closest("td").cellIndex;
    let row = event.target.closest("tr");
    do row = step > 0 ? row.nextElementSibling : row.previousElementSibling;
    while (row && !row.cells[column].querySelector("input"));
    const next = row?.cells[column].querySelector("input:not([type=hidden])");
    if (next) {
      next.focus();
      next.select();
    } else {
      event.target.blur();
      event.target.focus();
    }
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-take]");
    if (!button) return;
    const field = button.closest("td").querySelector("input[data-now]");
    field.value = field.dataset.now;
    field.form.elements[field.name.replace(/^q-/, "v-")].value = button.dataset.version;
    field.focus();
    for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
  });
})();
