// A value that notifies its readers only when it becomes another object, so that unchanged parts are not drawn again.

import { untrack } from "svelte";

export function stable<T>(read: () => T): { readonly current: T } {
  let value = $state.raw(untrack(read));
  $effect.pre(() => {
    value = read();
  });
  return {
    get current() {
      return value;
    },
  };
}
