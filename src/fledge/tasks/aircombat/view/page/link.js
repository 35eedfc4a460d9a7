// The connection to the match on the server: reconnects automatically, and then gets what it missed.

const WAITS_MS = [250, 500, 1000, 2000, 4000];

// The id of this tab: a reload keeps it, another tab has its own.
function whoAmI() {
  const fresh = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
  try {
    const known = sessionStorage.getItem("fledge-who");
    if (known) return known;
    sessionStorage.setItem("fledge-who", fresh);
  } catch {
    // storage is not available: a reload gets a new id
  }
  return fresh;
}

export class Link {
  // `on` has handlers for the messages: welcome, cut, state, graph, frames, gone, and up(true or false).
  constructor(path, on) {
    this.path = path;
    this.on = on;
    this.tries = 0;
    this.who = whoAmI();
    this.closed = false;
    this.connect();
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}${this.path}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.tries = 0;
      socket.send(JSON.stringify({ do: "hello", who: this.who }));
      this.on.up(true);
    };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") return this.on.frames(data);
      const message = JSON.parse(data);
      if (message.say === "gone") this.closed = true;
      this.on[message.say]?.(message);
    };
    socket.onclose = () => {
      this.on.up(false);
      if (!this.closed) setTimeout(() => this.connect(), WAITS_MS[Math.min(this.tries++, WAITS_MS.length - 1)]);
    };
    this.socket = socket;
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}
