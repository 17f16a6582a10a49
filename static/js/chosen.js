// Keep jobs chosen while the table updates itself, and show how many are chosen. When the reader
// comes back to the table, restore the choice by job id: a browser would tick the rows at the same
// positions, which may show other jobs by now.
(() => {
  const form = document.getElementById("chosen");
  const count = form.querySelector("[data-chosen-count]");
  const acts = form.querySelector("[data-chosen-acts]");
  const hint = count.textContent;
  const chosen = new Set(history.state?.chosen);
  const boxes = () => [...document.querySelectorAll('#jobs-live input[name="id"]')];

  const show = () => {
    const here = boxes();
    for (const box of here) box.checked = chosen.has(box.value);
    const all = document.querySelector("[data-choose-all]");
    if (all) {
      all.hidden = here.length === 0;
      all.checked = here.length > 0 && here.every((box) => box.checked);
      all.indeterminate = !all.checked && here.some((box) => box.checked);
    }
    acts.hidden = chosen.size === 0;
    count.hidden = here.length === 0;
    count.textContent = chosen.size === 0 ? hint : `${chosen.size} chosen`;
    history.replaceState({ ...history.state, chosen: [...chosen] }, "");
  };

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-choose-all]")) {
      for (const one of boxes()) chosen[box.checked ? "add" : "delete"](one.value);
    } else if (box.matches('#jobs-live input[name="id"]')) {
      chosen[box.checked ? "add" : "delete"](box.value);
    } else return;
    show();
  });
  // A job that is over, or on another page by now, is no longer chosen.
  const leaveOthers = () => {
    const here = new Set(boxes().map((box) => box.value));
    for (const id of chosen) if (!here.has(id)) chosen.delete(id);
    show();
  };
  document.addEventListener("htmx:after:swap", leaveOthers);
  // Boxes that the browser restored before this script ran.
  for (const box of boxes()) if (box.checked) chosen.add(box.value);
  leaveOthers();
})();
