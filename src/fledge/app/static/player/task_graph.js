// A task's own graph of a moment, beside the scene (air combat: the space-time graph).
//
// The task's page folder has it in graph.js, which sets globalThis.fledgeGraph: a class with a title, a label, and
// draw(graph, { me, names }). A saved page contains that script; the server names it in the list (graph_script).
import { make } from "./build.js";

const EVERY_MS = 150;

export class TaskGraph {
  constructor(player) {
    this.player = player;
    this.canvas = make("canvas", { role: "img" });
    this.heading = make("h2");
    this.element = make("div", { class: "fp-graph", hidden: true }, this.heading, this.canvas);
  }

  // Load the task's script, if it has one.
  async load(script) {
    if (script) await import(script);
    this.Graph = globalThis.fledgeGraph;
    if (!this.Graph) return;
    this.heading.textContent = this.Graph.title;
    this.canvas.setAttribute("aria-label", this.Graph.label);
  }

  // Show the graph if the episode has graphs.
  setPayload(payload) {
    const shown = Boolean(this.Graph && payload.head.graph && this.player.source.hasGraph(payload));
    this.element.hidden = !shown;
    this.payload = shown ? payload : null;
    this.key = null;
  }

  async update(t) {
    if (!this.payload || this.busy || performance.now() - (this.asked ?? 0) < EVERY_MS) return;
    const payload = this.payload;
    const { frame } = payload.at(t - payload.offset);
    const key = `${payload.number} ${frame} ${document.body.className} ${this.canvas.clientWidth}`;
    if (key === this.key) return;
    this.busy = true;
    this.asked = performance.now();
    try {
      this.graph ??= new this.Graph(this.canvas);
      const found = await this.player.source.graph(payload, frame);
      if (payload === this.payload) {
        if (found) this.graph.draw(found, { me: 0, names: payload.head.actors.slice(0, 2).map((actor) => actor.name) });
        this.key = key;
      }
    } catch (error) {
      this.key = key; // do not ask for this moment again
      this.canvas.title = error.message;
    } finally {
      this.busy = false;
      this.player.changed = true; // the time may have advanced meanwhile
    }
  }
}
