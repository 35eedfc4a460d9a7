// Numbers as people read them.

const STEPS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// 12345678 -> "12.3M"; 0.000123 -> "1.23e-4"
export function shortNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  for (const [step, letter] of STEPS) {
    if (size >= step * 0.9995) return `${plain(value / step, digits)}${letter}`;
  }
  if (size < 1e-3) return value.toExponential(Math.max(digits - 1, 0)).replace(/\.?0+e/, "e");
  return plain(value, digits);
}

function plain(value, digits) {
  const text = Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−");
}

export function wholeNumber(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

// 3725 -> "1 h 2 min"
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function megabytes(bytes) {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(2)} GB`;
  if (bytes >= 1e6) return `${(bytes / 1e6).toFixed(2)} MB`;
  return `${(bytes / 1e3).toFixed(1)} kB`;
}

// An element with classes and text. Text of files goes in here, never as markup.
export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}
