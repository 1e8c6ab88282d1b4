// Layout and accessibility problems of a page, as sentences; and the focused element. Used by test_layout.py.
(() => {
  const said = (element) =>
    `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} “${(element.textContent ?? "").trim().slice(0, 40)}”`;
  const seen = (element) =>
    element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden" && !element.closest(".hidden, [hidden]");
  const sections = () => [...document.querySelectorAll("main .page > section")];

  // everything that can be used has a name, and stands in the order of the page
  function unnamed() {
    const used = "button, a[href], input, select, textarea, audio, [tabindex='0'], [role=slider], [role=button]";
    const found = [];
    for (const element of [...document.querySelectorAll(used)].filter(seen)) {
      const labels = [...(element.labels ?? [])].map((label) => label.textContent).join(" ");
      const own = element.matches("input, select, textarea") ? "" : element.textContent;
      const name = element.getAttribute("aria-label") || labels || own || element.title;
      if (!name?.trim()) found.push(`${said(element)} has no name`);
      if (Number(element.getAttribute("tabindex")) > 0) found.push(`${said(element)} jumps the queue of Tab`);
    }
    return found;
  }

  // what scrolls by itself may be wider than its place; what is cut off says the whole in its title
  function outside(section) {
    const box = section.getBoundingClientRect();
    const found = [];
    for (const element of [...section.querySelectorAll("*")].filter(seen)) {
      const drawn = element instanceof SVGElement;
      if (element.closest(".scroll, .rows, nav, ul, .line") || (drawn && !["svg", "text"].includes(element.tagName))) continue;
      const place = element.getBoundingClientRect();
      const by = Math.round(Math.max(place.right - box.right, box.left - place.left));
      if (by > 2) found.push(`${said(element)} runs out of its column by ${by}`);
      const hides = !drawn && ["hidden", "clip"].includes(getComputedStyle(element).overflowX);
      if (hides && element.scrollWidth > element.clientWidth + 1 && element.textContent?.trim() && !element.closest("[title]"))
        found.push(`${said(element)} is cut off`);
    }
    return found;
  }

  function cutByPicture(drawing) {
    if (!seen(drawing) || getComputedStyle(drawing).overflow === "visible") return [];
    const frame = drawing.getBoundingClientRect();
    const out = (text) => {
      const place = text.getBoundingClientRect();
      const by = [place.right - frame.right, frame.left - place.left, place.bottom - frame.bottom, frame.top - place.top];
      return place.width > 0 && Math.max(...by) > 2;
    };
    return [...drawing.querySelectorAll("text")].filter(out).map((text) => `${said(text)} is cut off by its picture`);
  }

  function overlapping() {
    const cards = [...document.querySelectorAll("main .card, main .status, main .notice")].filter(seen);
    const boxes = cards.map((card) => card.getBoundingClientRect());
    const found = [];
    for (let i = 0; i < cards.length; i++)
      for (let j = 0; j < i; j++) {
        const [one, two] = [boxes[i], boxes[j]];
        const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        const inside = cards[i].contains(cards[j]) || cards[j].contains(cards[i]);
        if (!inside && across > 1 && down > 1) found.push(`${said(cards[i])} overlaps ${said(cards[j])}`);
      }
    return found;
  }

  window.audited = () => {
    const wide = document.documentElement.scrollWidth;
    const found = wide > innerWidth ? [`the page is ${wide} wide`] : [];
    found.push(...unnamed(), ...overlapping());
    for (const section of sections()) found.push(...outside(section), ...[...section.querySelectorAll("svg")].flatMap(cutByPicture));
    return [...new Set(found)];
  };

  // what has the focus: its place in the page, its section, and whether that it has it can be seen
  window.focused = () => {
    const element = document.activeElement;
    if (!element || element === document.body) return null;
    const ringed = (each) => {
      const look = getComputedStyle(each);
      if (look.outlineStyle !== "none" && parseFloat(look.outlineWidth) > 0) return true;
      return each instanceof SVGElement && look.stroke !== "none" && parseFloat(look.strokeWidth) >= 1.5;
    };
    return {
      ring: [element, ...element.querySelectorAll(".reach")].some(ringed) || element.closest(".drop:focus-within") !== null,
      section: sections().findIndex((section) => section.contains(element)),
      number: [...document.querySelectorAll("*")].indexOf(element),
      said: said(element),
    };
  };
})();
