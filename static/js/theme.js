// Light, dark or the system's theme. Loaded before the style sheets, so that no page flashes.
(() => {
  const KEY = "kant-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const choice = () => {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "auto";
  };

  const apply = () => {
    const theme = choice() === "auto" ? (dark.matches ? "dark" : "light") : choice();
    document.documentElement.dataset.bsTheme = theme;
    document.documentElement.classList.toggle("dark-mode", theme === "dark"); // Swagger UI's name
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice()));
    }
    document.dispatchEvent(new CustomEvent("kant:theme"));
  };

  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (!button) return;
    localStorage.setItem(KEY, button.dataset.themeChoice);
    apply();
  });
  apply();
})();
