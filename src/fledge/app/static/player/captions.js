// Title and legend over the scene.
import { make, shownTime } from "./build.js";
import { words } from "./palette.js";

export class Captions {
  constructor(player) {
    this.player = player;
    this.title = make("div", { class: "fp-title", role: "status" });
    this.legend = make("div", { class: "fp-legend" });
  }

  draw() {
    this.drawTitle();
    this.drawLegend();
  }

  drawTitle() {
    const { group, note, payload, stageHost, tints, transport } = this.player;
    const { head } = payload;
    const dot = make("span", { class: "fp-dot", style: `background: var(--fl-${tints[head.outcome] ?? "s7"})` });
    const beside = group.length > 1 ? ` · ${group.length} together` : "";
    this.title.replaceChildren(dot, `#${head.number} ${words(head.outcome)}`, make("small", {}, `${head.task}${beside}`));
    if (note) this.title.append(make("small", { class: "fl-error" }, note));
    stageHost.setAttribute("role", "img");
    stageHost.setAttribute("aria-label", `Episode ${head.number} of ${head.task}, ${words(head.outcome)}, ${shownTime(payload.end)}`);
    transport.drawBefore();
  }

  drawLegend() {
    const { group, payload, shows, tints, view } = this.player;
    const { head } = payload;
    const entries = [];
    const sign = (name, text) => entries.push(make("span", {}, make("i", { class: `fp-sign fp-sign-${name}` }), text));
    if (group.length > 1) {
      const met = new Set(group.map((each) => each.head.outcome));
      for (const name of met) entries.push(make("span", {}, make("i", { class: "fp-sign", style: `background: var(--fl-${tints[name] ?? "s7"})` }), words(name)));
    }
    if (head.actors.some((actor) => actor.kind === "goal")) sign("goal", "goal");
    if (head.crowd) sign("mover", "moving obstacle");
    if (head.crowd?.seen) sign("seen", "detected");
    if (head.beams && shows.beams) sign("beam", "LiDAR hit");
    if (head.actors.some((actor) => actor.energy)) sign("energy", "energy left");
    const grid = view.gridStep;
    if (grid) entries.push(make("span", {}, `grid ${grid >= 1000 ? `${grid / 1000} km` : `${grid} m`}`));
    this.legend.replaceChildren(...entries);
  }
}
