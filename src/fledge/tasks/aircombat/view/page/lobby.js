// <fledge-lobby>: choose pilots, start and seed, or join a match. A link with both pilots starts at once.
import { button, choice, el, setText } from "./dom.js";

const SIDES = ["blue", "red"];

class Lobby extends HTMLElement {
  connectedCallback() {
    if (this.firstChild) return;
    const options = JSON.parse(this.dataset.options);
    const asked = new URLSearchParams(location.search);
    const people = [options.person, ...options.names];
    this.chosen = {
      blue: asked.get("blue") ?? options.person,
      red: asked.get("red") ?? (options.names.includes("crank") ? "crank" : options.names[0]),
      start: asked.get("start") ?? (options.starts.includes("default") ? "default" : options.starts[0]),
    };
    this.note = el("p", { class: "fl-error", role: "alert" });
    this.seed = el("input", { class: "fl-field fd-seed", inputmode: "numeric", value: asked.get("seed") ?? "", placeholder: "any", "aria-label": "Seed" });
    const pick = (name, values) => {
      const all = values.includes(this.chosen[name]) ? values : [this.chosen[name], ...values];
      return choice(name, all, this.chosen[name], (value) => (this.chosen[name] = value));
    };
    const form = el("section", { class: "fl-panel fd-lobby" },
      el("h1", { text: "Air combat" }),
      el("p", { class: "fl-note", text: "Fly one side yourself, watch two policies, or leave both seats to people: each person who opens the page takes an empty one." }),
      el("div", { class: "fd-form" },
        ...SIDES.map((side) => el("label", { class: `fd-${side}` }, el("span", { text: side }), pick(side, people))),
        el("label", {}, el("span", { text: "start" }), pick("start", options.starts)),
        el("label", {}, el("span", { text: "seed" }), this.seed)),
      button("Start", () => this.start(), { class: "fl-button fd-begin" }), this.note,
      el("p", { class: "fl-note", text: "Arrow keys or WASD fly, space fires. You can pause, go back to any moment, and fly on from there in either seat." })); // prettier-ignore
    this.append(form);
    if (options.matches.length) this.append(this.listMatches(options.matches));
    if (asked.has("blue") && asked.has("red")) this.start();
  }

  listMatches(matches) {
    const rows = matches.map((match) =>
      el("li", {}, el("a", { href: `/play/${encodeURIComponent(match.id)}`, text: `${match.seats[0]} against ${match.seats[1]}` }),
        el("span", { class: "fl-note", text: ` · ${match.seconds} s${match.over ? ", over" : ""}${match.free ? " · a seat is free" : ""} · ${match.people} here` }))); // prettier-ignore
    return el("section", { class: "fl-panel fd-lobby" }, el("h2", { text: "Running matches" }), el("ul", {}, ...rows));
  }

  async start() {
    const seed = this.seed.value.trim() === "" ? null : Number(this.seed.value);
    if (seed !== null && (!Number.isSafeInteger(seed) || seed < 0)) return setText(this.note, "The seed must be a whole number, 0 or more.");
    setText(this.note, "");
    try {
      const answer = await fetch("/play/new", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...this.chosen, seed }) });
      const told = await answer.json();
      if (told.id) location.replace(`/play/${encodeURIComponent(told.id)}`);
      else setText(this.note, told.error ?? "The match could not be started.");
    } catch {
      setText(this.note, "The server does not answer. Is it still running?");
    }
  }
}

customElements.define("fledge-lobby", Lobby);
