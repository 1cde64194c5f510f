// Keys and pointing in the reader of a trajectory; every page can be read without it.
"use strict";

(() => {
  const reader = document.getElementById("reader");
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const field = document.querySelector("input[type=search]");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
  });
  if (!reader) return;

  const tokens = reader.querySelector(".tokens");
  const about = document.getElementById("about");
  const all = Array.from(tokens.querySelectorAll(".t"));
  let here = null;

  // The colouring is part of the address, so that it can be kept and passed on.
  reader.querySelector(".colours").addEventListener("change", (event) => {
    const address = new URL(location.href);
    address.searchParams.set("colour", event.target.value);
    history.replaceState(null, "", address);
    for (const link of document.querySelectorAll(".reader .pager a")) {
      const target = new URL(link.href);
      target.searchParams.set("colour", event.target.value);
      link.href = target.href;
    }
  });

  const say = (token) => {
    const facts = token.dataset;
    const parts = [["token", token.id.slice(1)], ["id", facts.n]];
    if (facts.v !== undefined) parts.push(["version", facts.v]);
    if (facts.p !== undefined) parts.push(["engine", facts.p]);
    if (facts.q !== undefined) {
      const difference = Number(facts.q) - Number(facts.p);
      parts.push(["trainer", facts.q]);
      if (facts.p !== undefined) {
        parts.push(["difference", (difference < 0 ? "" : "+") + difference.toFixed(4)]);
        parts.push(["ratio m_t", Math.exp(difference).toFixed(4)]);
      }
    }
    parts.push(["loss", token.classList.contains("m1") ? "yes" : "no"]);
    about.replaceChildren();
    for (const [name, value] of parts) {
      const figure = document.createElement("b");
      figure.textContent = value;
      about.append(` ${name} `, figure, " ");
    }
  };

  const go = (token) => {
    if (!token) return;
    if (here) here.classList.remove("here");
    here = token;
    here.classList.add("here");
    here.scrollIntoView({ block: "nearest" });
    say(here);
  };

  tokens.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".t");
    if (token) say(token);
  });
  tokens.addEventListener("click", (event) => {
    const token = event.target.closest(".t");
    if (token) go(token);
  });
  tokens.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = here ? all.indexOf(here) + step : 0;
    go(all[Math.min(all.length - 1, Math.max(0, at))]);
  });
  const asked = document.getElementById(location.hash.slice(1));
  if (asked && asked.classList.contains("t")) go(asked);
})();
