import { expect, test } from "vitest";

import { toFields, fromFields, pack, unpack } from "./link";
import { toRequest, type State } from "./state";

const small: State = {
  title: "a & b", form: "qkv", q: [["1/2", "2 1/2"]], k: [["1", "0"], ["√2", "-1"]], v: [["1"], ["2"]],
  heads: 1, scale: "hard", mask: "custom", mask_rows: ["10"], positions: "", key_scales: ["1", "3/2"], names: ["<b>", "a,b;c"],
};

test("a short state is readable in its link and is restored", async () => {
  const found = await pack(toFields(small));
  expect(found.k).toBe("1,0;√2,-1");
  expect(toRequest(fromFields(await unpack(found)))).toEqual(toRequest(small));
});

test("a long state is pack and restored", async () => {
  const x = Array.from({ length: 64 }, (_, i) => [`${i / 7}`, "0.25", `-${i}`]);
  const w = [["1", "0"], ["0", "1"], ["1", "1"]];
  const large: State = { title: "", form: "x", x, wq: w, wk: w, wv: w, heads: 1, scale: "", mask: "causal", positions: "" };
  const found = await pack(toFields(large));
  expect(Object.keys(found)).toEqual(["z"]);
  expect(found.z).toMatch(/^[\w-]+$/);
  expect(toRequest(fromFields(await unpack(found)))).toEqual(toRequest(large));
});
