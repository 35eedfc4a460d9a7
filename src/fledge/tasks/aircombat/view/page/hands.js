// The user's controls: keys, and pads on a touch screen, from the task's list of controls.

const STICK_PER_S = 3.5; // a stick goes to its end within about a third of a second
const BACK_PER_S = 7;
const LEVER_PER_S = 0.9;
const SEND_MS = 33;
const AGAIN_MS = 250; // unchanged controls are sent again, in case a message was lost

export class Hands {
  constructor(controls, send) {
    this.controls = controls;
    this.send = send;
    this.values = Object.fromEntries(controls.map((control) => [control.name, control.rest]));
    this.keys = new Set();
    this.pads = {}; // by control, where a finger holds it
    this.pressed = new Set();
    this.sent = "";
    this.when = 0;
    this.active = false;
    this.stop = new AbortController();
    const options = { signal: this.stop.signal };
    window.addEventListener("keydown", (event) => this.key(event, true), options);
    window.addEventListener("keyup", (event) => this.key(event, false), options);
    window.addEventListener("blur", () => this.letGo(), options);
  }

  letGo() {
    this.keys.clear();
    this.pads = {};
  }

  // Keys that control the aircraft do not scroll the page or press the focused button.
  key(event, down) {
    if (!this.active || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target instanceof Element && event.target.closest("input:not([type=range]), select, textarea")) return;
    const meant = this.controls.find((c) => [...c.keys_less, ...c.keys_more].includes(event.code));
    if (meant === undefined) return;
    event.preventDefault();
    if (!down) return void this.keys.delete(event.code);
    if (meant.kind === "button" && !event.repeat) this.press(meant.name);
    this.keys.add(event.code);
  }

  press(name) {
    this.pressed.add(name);
    this.flush(performance.now(), true);
  }

  // Move the held controls for `seconds` of real time.
  move(seconds, now) {
    for (const control of this.controls) {
      if (control.kind === "button") continue;
      const less = control.keys_less.some((key) => this.keys.has(key));
      const more = control.keys_more.some((key) => this.keys.has(key));
      const span = control.high - control.low;
      const value = this.values[control.name];
      if (this.pads[control.name] !== undefined) {
        this.values[control.name] = this.pads[control.name];
      } else if (less !== more) {
        const rate = control.kind === "stick" ? (STICK_PER_S * span) / 2 : LEVER_PER_S * span;
        this.values[control.name] = Math.min(Math.max(value + (more ? 1 : -1) * rate * seconds, control.low), control.high);
      } else if (control.kind === "stick") {
        const by = control.rest - value;
        const most = ((BACK_PER_S * span) / 2) * seconds;
        this.values[control.name] = value + Math.min(Math.max(by, -most), most);
      }
    }
    this.flush(now, false);
  }

  flush(now, atOnce) {
    const message = { do: "hands" };
    for (const control of this.controls) {
      if (control.kind !== "button") message[control.name] = Math.round(this.values[control.name] * 1000) / 1000;
    }
    const text = JSON.stringify(message);
    const changed = text !== this.sent;
    if (!atOnce && !(changed && now - this.when > SEND_MS) && now - this.when < AGAIN_MS) return;
    for (const name of this.pressed) message[name] = 1;
    this.pressed.clear();
    this.send(message);
    this.sent = text;
    this.when = now;
  }

  // Create a pad for each control, for touch and mouse.
  makePads(place) {
    place.replaceChildren();
    for (const control of this.controls) {
      place.append(control.kind === "button" ? this.makeButton(control) : this.makePad(control));
    }
  }

  makeButton(control) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fd-fire";
    button.textContent = control.label;
    button.setAttribute("aria-label", `${control.label} (${control.keys_more.join(", ")})`);
    button.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.press(control.name);
    });
    return button;
  }

  makePad(control) {
    const upright = control.keys_more.includes("ArrowUp");
    const flipped = control.keys_more.includes("ArrowLeft"); // more is to the left
    const pad = document.createElement("div");
    pad.className = upright ? "fd-pad fd-upright" : "fd-pad";
    pad.dataset.control = control.name;
    pad.setAttribute("role", "slider");
    pad.setAttribute("aria-label", control.label);
    pad.setAttribute("aria-valuemin", control.low);
    pad.setAttribute("aria-valuemax", control.high);
    const knob = document.createElement("div");
    knob.className = "fd-knob";
    const label = document.createElement("div");
    label.className = "fd-padlabel";
    label.textContent = control.label;
    pad.append(label, knob);
    const put = (event) => {
      const box = pad.getBoundingClientRect();
      let share = upright ? 1 - (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width;
      share = Math.min(Math.max((share - 0.12) / 0.76, 0), 1);
      this.pads[control.name] = control.low + (flipped ? 1 - share : share) * (control.high - control.low);
      event.preventDefault();
    };
    pad.addEventListener("pointerdown", (event) => {
      pad.setPointerCapture(event.pointerId);
      put(event);
    });
    pad.addEventListener("pointermove", (event) => this.pads[control.name] !== undefined && put(event));
    for (const name of ["pointerup", "pointercancel"]) pad.addEventListener(name, () => delete this.pads[control.name]);
    pad.show = () => {
      let share = (this.values[control.name] - control.low) / (control.high - control.low);
      if (flipped) share = 1 - share;
      knob.style[upright ? "bottom" : "left"] = `${6 + 76 * share}%`;
      pad.setAttribute("aria-valuenow", this.values[control.name].toFixed(2));
    };
    pad.show();
    return pad;
  }

  close() {
    this.stop.abort();
  }
}
