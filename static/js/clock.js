// Show a time typed in UTC in the reader's time zone as well.
(() => {
  const here = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "short" });
  const { timeZone } = here.resolvedOptions();
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-clock]")) return;
    const hint = document.getElementById(`${event.target.id}-local`);
    hint.dataset.empty ??= hint.textContent;
    const at = new Date(`${event.target.value}Z`);
    hint.textContent = Number.isNaN(at.getTime()) ? hint.dataset.empty : `${here.format(at)} where you are (${timeZone})`;
  });
})();
