// The play page of air combat: defines <fledge-lobby>, which starts a match, and <fledge-match>, which shows it.
import "./lobby.js";
import "./match.js";
