// A value that tells of a change only where there is one: what stays the same object wakes nobody who shows it.

import { untrack } from "svelte";

export function settled<T>(read: () => T): { readonly current: T } {
  let kept = $state.raw(untrack(read));
  $effect.pre(() => {
    kept = read();
  });
  return {
    get current() {
      return kept;
    },
  };
}
