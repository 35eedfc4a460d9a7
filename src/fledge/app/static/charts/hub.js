// State shared by all charts of a page: the cursor and the zoom range.
import { shortNumber } from "./format.js";

export class Hub {
  constructor() {
    this.charts = new Set();
    this.cursor = null; // where on the axis, or null
    this.range = null; // [low, high], or null: everything
    this.axis = { label: "", format: shortNumber };
    this.extent = [0, 1];
    // the theme changes the page's class; canvases must be redrawn
    new MutationObserver(() => this.redraw()).observe(document.body, { attributeFilter: ["class"] });
  }

  point(x, owner = null) {
    this.cursor = x;
    this.owner = owner; // the chart under the pointer, which shows more
    this.redraw();
  }

  select(range) {
    this.range = range;
    this.redraw();
  }

  redraw() {
    for (const chart of this.charts) chart.later();
  }

  get bounds() {
    return this.range ?? this.extent;
  }
}
