// The matrix under the fingers: Enter and the arrows move down and up, like in a sheet.
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

  // A check that was refused changes nothing on the page, so say that it was.
  const refused = (is) => { document.getElementById("check-refused").hidden = !is; };
  for (const fault of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(fault, () => refused(true));
  }
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.response.status < 400) refused(false);
  });

  // Edits that are not saved are not lost by a careless click.
  let leaving = false;
  document.addEventListener("submit", () => { leaving = true; });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-discard]")) leaving = true;
  });
  addEventListener("beforeunload", (event) => {
    const typed = [...document.querySelectorAll(".matrix input")].some((i) => i.value !== i.defaultValue);
    if (!leaving && (typed || document.querySelector(".matrix .edited"))) event.preventDefault();
  });
})();
