// Create DOM elements. Content of files is inserted as text, never as markup.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function shownNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : Math.min(digits, 2));
}

export function shownTime(seconds) {
  const whole = Math.max(0, seconds);
  const minutes = Math.floor(whole / 60);
  const rest = (whole - 60 * minutes).toFixed(1).padStart(4, "0");
  return `${minutes}:${rest}`;
}
