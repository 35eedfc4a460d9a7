// Light and dark theme: follows the system until the user chooses; this browser remembers the choice.
// Loaded in the head, before the page is drawn; NiceGUI's setDark does the work once it is there.
const KEY = "fledge-theme";
const ORDER = ["system", "light", "dark"];
const LABELS = { system: "Auto", light: "Light", dark: "Dark" };

function chosen() {
  try {
    return ORDER.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system";
  } catch {
    return "system"; // a browser without storage
  }
}

function apply(tries = 100) {
  const value = chosen();
  const button = document.querySelector(".fl-theme");
  if (button === null || typeof setDark !== "function" || typeof Quasar === "undefined") {
    if (tries > 0) setTimeout(() => apply(tries - 1), 50);
    return;
  }
  setDark(value === "system" ? null : value === "dark");
  button.textContent = LABELS[value];
  button.setAttribute("aria-label", `Theme: ${LABELS[value]}. Change it`);
}

document.addEventListener("click", (event) => {
  if (!(event.target instanceof Element) || event.target.closest(".fl-theme") === null) return;
  const next = ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // storage is not available: the choice applies to this page only
  }
  apply();
});
document.addEventListener("DOMContentLoaded", () => apply());
