// Forms that the server checks as they are edited, and whose edits are saved together.
(() => {
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
    const fields = [...document.querySelectorAll("[data-edits] :is(input, textarea)")];
    const typed = fields.some((f) => f.value !== f.defaultValue || f.checked !== f.defaultChecked);
    if (!leaving && (typed || document.querySelector("[data-edits] .edited"))) event.preventDefault();
  });
})();
