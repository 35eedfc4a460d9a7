// Labels of a drawing: placed last, important ones first, so that none covers another and none is cut by the edge.
const AROUND = [[0, 0], [0, 14], [0, -14], [0, 28], [0, -28], [36, 0], [-36, 0], [36, 16], [-36, 16], [36, -16], [-36, -16]]; // prettier-ignore
const EDGE = 4;

export class Labels {
  constructor(paper) {
    this.paper = paper;
    this.clear();
  }

  clear() {
    this.wanted = [];
    this.taken = [];
  }

  // Reserve an area: a symbol, or a button above the drawing.
  keepFree(left, top, right, bottom) {
    this.taken.push([left, top, right, bottom]);
  }

  // `x` is the centre, `y` the baseline. Lower ranks are placed first; labels that must be drawn may overlap.
  add(text, x, y, colour, { rank = 1, size = 11, weight = 500, must = false } = {}) {
    this.wanted.push({ text, x, y, colour, rank, size, weight, must });
  }

  draw() {
    for (const label of this.wanted.sort((a, b) => a.rank - b.rank)) {
      const half = this.paper.measure(label.text, label.size, label.weight) / 2;
      const spots = AROUND.map(([dx, dy]) => this.inside(label.x + dx, label.y + dy, half, label.size));
      const free = spots.find(([x, y]) => this.isFree(boxOf(x, y, half, label.size)));
      if (!free && !label.must) continue;
      const [x, y] = free ?? spots[0];
      this.taken.push(boxOf(x, y, half, label.size));
      this.paper.text(label.text, x, y, label.colour, { size: label.size, align: "center", weight: label.weight });
    }
  }

  inside(x, y, half, size) {
    const { width, height } = this.paper;
    return [Math.min(Math.max(x, half + EDGE), width - half - EDGE), Math.min(Math.max(y, size + EDGE), height - EDGE)];
  }

  isFree([left, top, right, bottom]) {
    return !this.taken.some(([l, t, r, b]) => left < r && l < right && top < b && t < bottom);
  }
}

function boxOf(x, y, half, size) {
  return [x - half - 1, y - size + 1, x + half + 1, y + 3];
}
