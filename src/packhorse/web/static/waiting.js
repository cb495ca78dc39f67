// The page for the end user.
import { following, percent } from "./following.js";

following(() => document.getElementById("waiting"), { moved: percent });
