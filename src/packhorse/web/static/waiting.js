// The page of the person who waits.
import { following, percent } from "./following.js";

following(() => document.getElementById("waiting"), { moved: percent });
