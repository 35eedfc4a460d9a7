// Loading LiDAR beams, a part of an episode at a time.
import { BEAM_FRAMES } from "./source.js";

// Return the beams of a frame; null while they are loading. Also preloads the next part.
export function beamsOf(player, payload, frame) {
  if (!payload.head.beams) return null;
  const part = Math.floor(frame / BEAM_FRAMES);
  const found = payload.beamsAt(frame, BEAM_FRAMES);
  for (const wanted of [part, part + 1]) {
    // a running episode had only some frames of this part when it was loaded: load it again
    const known = payload.beamParts.get(wanted);
    const enough = known && (wanted !== part || found || known.head.beams === null);
    if (enough || wanted * BEAM_FRAMES >= payload.frames || payload.beamsAsked.has(wanted)) continue;
    payload.beamsAsked.add(wanted);
    player.source
      .beams(payload, wanted)
      .then((answer) => payload.beamParts.set(wanted, answer))
      .catch(() => null)
      .finally(() => {
        setTimeout(() => payload.beamsAsked.delete(wanted), 250);
        player.changed = true;
      });
  }
  return found;
}
