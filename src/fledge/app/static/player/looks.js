// The buttons over the scene: camera, and what is shown.
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
      make("div", { class: "fp-group", role: "group", "aria-label": "Camera" }, look("overview", "Overview", "See everything (O)"), look("follow", "Follow", "Follow the chosen one (F)"), look("top", "Top", "From above (T)")),
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

  // Mark the buttons that are on, and hide those that this episode has no use for.
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
