// The list of episodes, with a filter button for each outcome.
import { make, shownNumber } from "./build.js";
import { words } from "./palette.js";

const MOST = 400; // rows in the page at once

export class Episodes {
  constructor(host, onChoose) {
    this.host = host;
    this.onChoose = onChoose;
    this.filter = "all";
    this.chips = make("div", { class: "fp-chips", role: "group", "aria-label": "Show episodes by outcome" });
    this.list = make("div", { class: "fp-list", role: "listbox", "aria-label": "Episodes", tabindex: "-1" });
    this.count = make("p", { class: "fl-note fp-count" });
    const head = make("div", { class: "fp-row fp-row-head", "aria-hidden": "true" }, make("span", { class: "fp-row-name" }, "outcome"));
    head.append(make("span", { class: "fp-row-fact" }, "seconds"), make("span", { class: "fp-row-fact" }, "return"));
    host.append(this.chips, head, this.list, this.count);
  }

  // Update the list from the server's answer; existing rows are kept.
  setList(told, tints) {
    this.told = told;
    this.tints = tints;
    this.drawChips();
    this.drawRows();
  }

  shown() {
    return this.told.episodes.filter((row) => this.passes(row));
  }

  passes(row) {
    if (this.filter === "all") return true;
    if (this.filter === "failures") return !row.good && row.outcome !== "running";
    return row.outcome === this.filter;
  }

  drawChips() {
    const rows = this.told.episodes;
    const counts = { all: rows.length, failures: rows.filter((row) => !row.good && row.outcome !== "running").length };
    for (const row of rows) counts[row.outcome] = (counts[row.outcome] ?? 0) + 1;
    const known = rows.some((row) => row.good);
    const names = ["all", ...(known && counts.failures ? ["failures"] : []), ...Object.keys(counts).slice(2)];
    if (!names.includes(this.filter)) this.filter = "all";
    const key = JSON.stringify([names, counts, this.filter]);
    if (key === this.chipKey) return;
    this.chipKey = key;
    this.chips.replaceChildren(
      ...names.map((name) => {
        const chip = make("button", {
          type: "button",
          class: "fp-chip",
          "aria-pressed": String(name === this.filter),
          "data-outcome": name,
          onclick: () => this.setFilter(name),
        });
        if (this.tints[name]) chip.append(make("span", { class: "fp-dot", style: `background: var(--fl-${this.tints[name]})` }));
        chip.append(`${words(name)} ${counts[name]}`);
        return chip;
      }),
    );
  }

  setFilter(name) {
    this.filter = name;
    this.drawChips();
    this.drawRows();
    const shown = this.shown();
    if (shown.length && !shown.some((row) => row.number === this.chosen)) this.onChoose(shown[0].number);
  }

  drawRows() {
    const shown = this.shown();
    const key = JSON.stringify(shown.slice(-MOST).map((row) => [row.number, row.outcome, row.running ? 0 : row.seconds]));
    if (key !== this.rowKey) {
      this.rowKey = key;
      this.list.replaceChildren(...shown.slice(-MOST).map((row) => this.makeRow(row)));
      const hidden = Math.max(0, shown.length - MOST) + this.told.left_out;
      this.count.textContent = hidden ? `${hidden} more are not listed` : "";
    }
    this.mark();
  }

  makeRow(row) {
    return make(
      "button",
      { type: "button", class: "fp-row", role: "option", "data-number": row.number, onclick: () => this.onChoose(row.number) },
      make("span", { class: "fp-dot", style: `background: var(--fl-${this.tints[row.outcome] ?? "s7"})` }),
      make("span", { class: "fp-row-name" }, `#${row.number} ${words(row.outcome)}`),
      make("span", { class: "fp-row-fact" }, row.seconds.toFixed(1)),
      make("span", { class: "fp-row-fact" }, row.return === null ? "" : shownNumber(row.return)),
    );
  }

  choose(number) {
    this.chosen = number;
    this.mark();
  }

  mark() {
    for (const row of this.list.children) {
      const chosen = Number(row.dataset.number) === this.chosen;
      row.setAttribute("aria-selected", String(chosen));
      if (chosen && this.marked !== this.chosen) {
        const [top, bottom] = [row.offsetTop, row.offsetTop + row.offsetHeight];
        if (top < this.list.scrollTop || bottom > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top - 60;
      }
    }
    this.marked = this.chosen;
  }

  // Return the episode `step` rows further in the filtered list.
  neighbour(step) {
    const shown = this.shown();
    const at = shown.findIndex((row) => row.number === this.chosen);
    return shown[Math.min(shown.length - 1, Math.max(0, at + step))]?.number;
  }
}
