// The player's keyboard shortcuts.
export function handleKey(player, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const frames = event.shiftKey ? 20 : 1;
  const keys = {
    " ": () => player.play(!player.playing),
    ArrowLeft: () => player.step(-frames),
    ArrowRight: () => player.step(frames),
    ArrowUp: () => player.choose(player.episodes.neighbour(-1)),
    ArrowDown: () => player.choose(player.episodes.neighbour(1)),
    Home: () => player.seek(0),
    End: () => player.seek(player.length),
    b: () => player.beforeEnd(),
    f: () => player.look("follow"),
    o: () => player.look("overview"),
    t: () => player.look("top"),
    "+": () => player.transport.faster(1),
    "-": () => player.transport.faster(-1),
  };
  const action = keys[event.key];
  if (!action || (event.key === " " && event.target.tagName === "BUTTON")) return;
  event.preventDefault();
  action();
}
