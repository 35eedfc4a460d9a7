// Draw the lines of a chart, {label, color, dash, x, y, low, high, smoothed}, and look up their values.
import { make } from "./format.js";
import { nearest } from "./scale.js";

export function drawLine(paint, view, line, style) {
  const color = style.getPropertyValue(line.color);
  paint.strokeStyle = paint.fillStyle = color;
  paint.lineJoin = "round";
  if (line.low && line.smoothed === line.y) fillBand(paint, view, line);
  if (line.smoothed !== line.y) {
    paint.globalAlpha = 0.22;
    paint.lineWidth = 1;
    paint.setLineDash([]);
    strokeValues(paint, view, line.x, line.y);
  }
  paint.globalAlpha = 1;
  paint.lineWidth = 1.8;
  paint.setLineDash(line.dash ?? []);
  strokeValues(paint, view, line.x, line.smoothed);
  paint.setLineDash([]);
}

function fillBand(paint, view, line) {
  paint.globalAlpha = 0.15;
  paint.beginPath();
  const known = line.x.map((_, k) => k).filter((k) => line.low[k] !== null && line.high[k] !== null);
  for (const k of known) paint.lineTo(view.x(line.x[k]), view.y(line.high[k]));
  for (const k of known.reverse()) paint.lineTo(view.x(line.x[k]), view.y(line.low[k]));
  paint.fill();
}

// Rows without a value are skipped: evaluations have a value only every few rows.
function strokeValues(paint, view, x, y) {
  paint.beginPath();
  let drawn = 0;
  let at = [0, 0];
  for (let k = 0; k < x.length; k += 1) {
    if (y[k] === null || y[k] === undefined) continue;
    at = [view.x(x[k]), view.y(y[k])];
    paint.lineTo(...at);
    drawn += 1;
  }
  paint.stroke();
  if (drawn === 1) {
    paint.beginPath();
    paint.arc(...at, 2.5, 0, 2 * Math.PI);
    paint.fill();
  }
}

// Return the point of a line nearest to x; null outside the line.
export function indexAt(line, x) {
  if (line.x.length === 0 || x > line.x[line.x.length - 1] * 1.0001 + 1e-9) return null;
  return nearest(line.x, x);
}

export function lastOf(values) {
  for (let k = values.length - 1; k >= 0; k -= 1) if (values[k] !== null) return values[k];
  return null;
}

// Return a sample of the line for the legend.
export function swatch(line) {
  const piece = make("span", "fc-swatch");
  piece.style.borderTopColor = `var(${line.color})`;
  piece.style.borderTopStyle = line.dash?.length ? (line.dash[0] < 4 ? "dotted" : "dashed") : "solid";
  return piece;
}
