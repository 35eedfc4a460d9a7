// Instruments of one side: speed, energy, missiles, threats, and the time to decide.
import { el, setText } from "./dom.js";

const TOP_SPEED = 490; // m/s

export class Gauges {
  constructor(side) {
    this.side = side;
    this.name = el("strong", { class: "fd-name" });
    this.role = el("span", { class: "fd-role" });
    this.speed = this.row("speed", "m/s");
    this.energy = this.row("energy", "%");
    this.missiles = this.row("missiles", "");
    this.decide = this.row("time to decide", "");
    this.verdict = el("p", { class: "fd-verdict" });
    this.shot = el("p", { class: "fd-shot" });
    const rows = [this.speed, this.energy, this.missiles, this.decide].map((row) => row.element);
    this.element = el("section", { class: `fd-gauges fd-${["blue", "red"][side]}`, "aria-label": `${["blue", "red"][side]}'s instruments` },
      el("header", {}, this.name, this.role), el("dl", {}, ...rows), this.verdict, this.shot); // prettier-ignore
  }

  row(label, unit) {
    const value = el("b");
    const bar = el("i");
    const element = el("div", {}, el("dt", { text: label }), el("dd", {}, value, unit ? ` ${unit}` : "", el("span", { class: "fd-bar" }, bar)));
    return { element, value, bar };
  }

  show(moment, graph, seat, role) {
    const own = moment.sides[this.side];
    setText(this.name, seat);
    setText(this.role, role);
    setText(this.speed.value, `${Math.round(own.speed)}`);
    this.speed.bar.style.width = `${Math.min((100 * own.speed) / TOP_SPEED, 100)}%`;
    const energy = (own.speed / TOP_SPEED) ** 2;
    setText(this.energy.value, `${Math.round(100 * energy)}`);
    this.energy.bar.style.width = `${Math.min(100 * energy, 100)}%`;
    const flying = own.missiles.length;
    setText(this.missiles.value, Number.isFinite(own.left) ? `${own.left}${flying ? ` + ${flying} in flight` : ""}` : "");
    if (graph === null) return;
    const told = graph.sides[this.side];
    const waits = told.incoming.map((missile) => missile.decide_s).filter((wait) => wait !== null);
    const seconds = waits.length ? Math.min(...waits) : told.incoming.length ? null : told.decide_s;
    setText(this.decide.value, seconds === null ? "no threat" : seconds <= 0 ? "too late" : `${seconds.toFixed(0)}${waits.length && seconds >= 20 ? "+" : ""} s`);
    this.element.dataset.level = told.verdict.level;
    setText(this.verdict, told.verdict.text);
    const km = (metres) => (metres / 1000).toFixed(1);
    const { shot } = told;
    setText(this.shot, `A shot now ${shot.words}. R_max ${km(shot.r_max_m)}, R_tr ${km(shot.r_tr_m)}, R_ne ${km(shot.r_ne_m)} km.`);
  }
}
