// Canvas drawing: sharp pixels, the theme's colours, text with a halo.

export class Paper {
  constructor(canvas) {
    this.canvas = canvas;
    // drawn by the CPU: an emulated graphics card would take a quarter of a second
    this.ctx = canvas.getContext("2d", { willReadFrequently: true });
    this.colours = {};
    this.read = -Infinity;
  }

  // Fit the canvas to its element; return false while that has no size.
  begin() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width < 2 || height < 2) return false;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    this.width = width;
    this.height = height;
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (performance.now() - this.read > 200) this.readColours();
    this.ctx.clearRect(0, 0, width, height);
    this.ctx.lineJoin = "round";
    this.ctx.lineCap = "butt";
    this.ctx.setLineDash([]);
    this.ctx.globalAlpha = 1;
    return true;
  }

  // The colours follow the theme.
  readColours() {
    this.read = performance.now();
    const style = getComputedStyle(document.body);
    for (const name of ["bg", "panel", "line", "text", "soft", "accent", "good", "warn", "bad", "blue", "red"]) {
      this.colours[name] = style.getPropertyValue(`--fl-${name}`).trim() || "#888";
    }
    this.side = [this.colours.blue, this.colours.red];
  }

  line(points, colour, width = 1.5, dash = [], alpha = 1) {
    if (points.length < 2) return;
    const { ctx } = this;
    ctx.globalAlpha = alpha;
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.setLineDash(dash);
    ctx.beginPath();
    points.forEach(([x, y], k) => (k ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
  }

  area(points, colour, alpha) {
    if (points.length < 3) return;
    const { ctx } = this;
    ctx.globalAlpha = alpha;
    ctx.fillStyle = colour;
    ctx.beginPath();
    points.forEach(([x, y], k) => (k ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.closePath();
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  // Return the width of a text in pixels.
  measure(text, size, weight = 500) {
    this.ctx.font = fontOf(size, weight);
    return this.ctx.measureText(text).width;
  }

  text(text, x, y, colour, { size = 12, align = "left", weight = 500, base = "alphabetic" } = {}) {
    const { ctx } = this;
    ctx.font = fontOf(size, weight);
    ctx.textAlign = align;
    ctx.textBaseline = base;
    ctx.lineWidth = 3;
    ctx.strokeStyle = this.colours.panel;
    ctx.globalAlpha = 0.85;
    ctx.strokeText(text, x, y);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colour;
    ctx.fillText(text, x, y);
  }

  cross(x, y, colour, size = 6) {
    for (const [stroke, width] of [
      [this.colours.panel, 6],
      [colour, 3],
    ]) {
      this.line([[x - size, y - size], [x + size, y + size]], stroke, width);
      this.line([[x - size, y + size], [x + size, y - size]], stroke, width);
    }
  }
}

function fontOf(size, weight) {
  return `${weight} ${size}px system-ui, "DejaVu Sans", sans-serif`;
}

// Return when a side that flies a manoeuvre is hit, by a shot fired now or a missile in the air; null if never.
export function hitBy(side, curve) {
  const hits = [curve.hit_s, ...side.incoming.map((missile) => missile.fates[curve.name]?.hit_s ?? null)];
  const real = hits.filter((seconds) => seconds !== null);
  return real.length ? Math.min(...real) : null;
}

// Return a round step for about `count` lines over a span.
export function niceStep(span, count) {
  const raw = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((k) => k * power).find((step) => step >= raw) ?? 10 * power;
}

export const km = (metres, digits = 1) => (metres / 1000).toFixed(digits);
