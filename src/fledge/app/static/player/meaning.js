// What a moment means: the graph that a world has of it (of air combat the space-time graph), beside the map.
import { SpaceTimeGraph } from "../duel/graph.js";
import { make } from "./build.js";

const EVERY_MS = 150;

export class Meaning {
  constructor(player) {
    this.player = player;
    this.canvas = make("canvas", { role: "img", "aria-label": "Space-time graph: time goes up, distance to the right" });
    this.element = make("div", { class: "fp-graph", hidden: true }, make("h2", {}, "Space-time graph"), this.canvas);
  }

  // Shown for a film that has such graphs.
  setFilm(film) {
    const shown = Boolean(film.head.graph && this.player.source.hasGraph(film));
    this.element.hidden = !shown;
    this.film = shown ? film : null;
    this.key = null;
  }

  async update(t) {
    if (!this.film || this.busy || performance.now() - (this.asked ?? 0) < EVERY_MS) return;
    const film = this.film;
    const { frame } = film.at(t - film.offset);
    const key = `${film.number} ${frame} ${document.body.className} ${this.canvas.clientWidth}`;
    if (key === this.key) return;
    this.busy = true;
    this.asked = performance.now();
    try {
      this.graph ??= new SpaceTimeGraph(this.canvas);
      const found = await this.player.source.graph(film, frame);
      if (film === this.film) {
        if (found) this.graph.draw(found, { me: 0, names: film.head.actors.slice(0, 2).map((actor) => actor.name) });
        this.key = key;
      }
    } catch (error) {
      this.key = key; // not again for this moment
      this.canvas.title = error.message;
    } finally {
      this.busy = false;
      this.player.changed = true; // where it came late, the next moment
    }
  }
}
