// Colours of the current theme, for canvases.
export function colour(name, element = document.body) {
  return getComputedStyle(element).getPropertyValue(`--fl-${name}`).trim() || "#888888";
}

const SIDES = { blue: "blue", red: "red", green: "s2", orange: "s4", violet: "s3" };

export function actorColour(name) {
  return colour(SIDES[name] ?? "s7");
}

// A colour for each outcome: good ones green, the others in the order of their names. All outcomes of the task count, even
// those that do not occur, so that an outcome has the same colour in all recordings.
export function outcomeColours({ outcomes, known_outcomes: names, headline }) {
  const others = ["bad", "s4", "s3", "s0", "s5", "s6"];
  const known = { [headline]: "good", running: "accent", timeout: "s7" };
  const found = {};
  let k = 0;
  for (const name of [...new Set([...names, ...Object.keys(outcomes)])].sort()) {
    found[name] = known[name] ?? others[k++ % others.length];
  }
  return found;
}

export function withAlpha(hex, alpha) {
  const value = hex.startsWith("#") && hex.length === 7 ? parseInt(hex.slice(1), 16) : 0x888888;
  return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${alpha})`;
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}
