import { expect, test } from "vitest";

import { fields, fromFields, packed, unpacked } from "./link";
import { asked, type State } from "./state";

const small: State = {
  title: "a & b", form: "qkv", q: [["1/2", "2 1/2"]], k: [["1", "0"], ["√2", "-1"]], v: [["1"], ["2"]],
  heads: 1, beta: "hard", mask: "own", allowed: ["10"], positions: "", scales: ["1", "3/2"], names: ["<b>", "a,b;c"],
};

test("a short state is readable in its link and comes back whole", async () => {
  const found = await packed(fields(small));
  expect(found.k).toBe("1,0;√2,-1");
  expect(asked(fromFields(await unpacked(found)))).toEqual(asked(small));
});

test("a long state is packed and comes back whole", async () => {
  const x = Array.from({ length: 64 }, (_, i) => [`${i / 7}`, "0.25", `-${i}`]);
  const w = [["1", "0"], ["0", "1"], ["1", "1"]];
  const large: State = { title: "", form: "x", x, wq: w, wk: w, wv: w, heads: 1, beta: "", mask: "causal", positions: "" };
  const found = await packed(fields(large));
  expect(Object.keys(found)).toEqual(["z"]);
  expect(found.z).toMatch(/^[\w-]+$/);
  expect(asked(fromFields(await unpacked(found)))).toEqual(asked(large));
});
