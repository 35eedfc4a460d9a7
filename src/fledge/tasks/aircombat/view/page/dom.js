// Create DOM elements. Text is inserted as text, so that a name from a file is never markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (name === "text") made.textContent = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function choice(label, values, chosen, on, title = "") {
  const select = el("select", { class: "fl-field fd-select", "aria-label": label, title: title || label, on: { change: () => on(select.value) } });
  for (const value of values) {
    const [name, text] = Array.isArray(value) ? value : [value, value];
    select.append(el("option", { value: name, text, selected: name === chosen }));
  }
  return select;
}

export function button(text, on, attributes = {}) {
  return el("button", { type: "button", class: "fl-button", text, on: { click: on }, ...attributes });
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
