// The buttons above the scene: camera and layers.
import { make } from "./build.js";

export class Looks {
  constructor(player) {
    this.player = player;
    const button = (attributes, label, title) => make("button", { type: "button", class: "fp-look", title, ...attributes }, label);
    const toggle = (name, label, title) => button({ "data-shows": name, onclick: () => player.toggle(name) }, label, title);
    const look = (name, label, title) => button({ "data-look": name, onclick: () => player.look(name) }, label, title);
    this.element = make(
      "div",
      { class: "fp-looks" },
      make("div", { class: "fp-group", role: "group", "aria-label": "Camera" }, look("overview", "Overview", "Show the whole map (O)"), look("follow", "Follow", "Follow the selected actor (F)"), look("top", "Top", "From above (T)")),
      make(
        "div",
        { class: "fp-group", role: "group", "aria-label": "Display" },
        toggle("trails", "Trails", "Past positions"),
        toggle("beams", "Beams", "LiDAR hits"),
        toggle("beside", "Together", "All episodes on the same map at once"),
      ),
    );
    this.draw();
  }

  // Mark the active buttons, and hide those that do not apply to this episode.
  draw() {
    const { shows, mode, payload, viewFlat } = this.player;
    const find = (css) => this.element.querySelector(css);
    for (const button of this.element.querySelectorAll("[data-shows]")) button.setAttribute("aria-pressed", String(shows[button.dataset.shows]));
    for (const button of this.element.querySelectorAll("[data-look]")) button.setAttribute("aria-pressed", String(mode === button.dataset.look));
    find("[data-shows=beams]").hidden = Boolean(payload) && !payload.head.beams;
    find("[data-shows=beside]").hidden = Boolean(payload) && !payload.head.stage;
    find("[data-look=top]").hidden = viewFlat === true;
  }
}
