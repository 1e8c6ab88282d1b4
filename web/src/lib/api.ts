// Asking the server: JSON, maps (bytes behind a JSON head), and the events of long work.

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

// A server that has ended answers nothing: that is said as such, and not as the browser says it.
function fetched(path: string, options: RequestInit): Promise<Response> {
  return fetch(path, options).catch((problem: Error) => {
    throw problem.name === "AbortError" ? problem : new Refused(0, "the server does not answer; is qkv studio still open?");
  });
}

async function answered(response: Response): Promise<Response> {
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.error ?? `the server answered ${response.status}`);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await answered(await fetched(path, { signal }))).json();
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await answered(await sent(path, body, signal))).json();
}

function sent(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  return fetched(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

export type Numbers = Float32Array | Float64Array | Uint8Array | Int32Array;
export interface Maps<Head> {
  head: Head;
  arrays: Record<string, { shape: number[]; data: Numbers }>;
}

const KINDS = { float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int32: Int32Array };

export async function maps<Head>(path: string, body: unknown, signal?: AbortSignal): Promise<Maps<Head>> {
  return unpacked<Head>(await (await answered(await sent(path, body, signal))).arrayBuffer());
}

export function unpacked<Head>(bytes: ArrayBuffer): Maps<Head> {
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  const arrays: Maps<Head>["arrays"] = {};
  for (const [name, { dtype, shape, offset }] of Object.entries<any>(head.arrays)) {
    const count = shape.reduce((product: number, side: number) => product * side, 1);
    const kind = KINDS[dtype as keyof typeof KINDS];
    arrays[name] = { shape, data: new kind(bytes, 4 + length + offset, count) };
  }
  return { head, arrays };
}

export interface JobState<Result> {
  id: string;
  kind: string;
  state: "running" | "done" | "failed" | "cancelled";
  error: string;
  result: Result;
}

// Watches a job until it ends; every event goes to `heard`, the promise gives its result. Who leaves aborts: a browser
// has six connections to a server, and a stream that nobody reads keeps one of them.
export function watched<Result>(id: string, heard: (event: any) => void, signal: AbortSignal): Promise<JobState<Result>> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const source = new EventSource(`/api/jobs/${id}/events`);
    const ask = () => get<JobState<Result>>(`/api/jobs/${id}`, signal);
    const fail = (problem: unknown) => {
      close();
      reject(problem);
    };
    const left = () => fail(signal.reason);
    const close = () => {
      source.close();
      signal.removeEventListener("abort", left);
    };
    signal.addEventListener("abort", left);
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      heard(event);
      if (!["done", "failed", "cancelled"].includes(event.state)) return;
      close();
      ask().then(resolve, reject);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) fail(new Refused(0, "the server does not answer any more"));
      else ask().catch(fail); // the browser tries for ever to reach a server that has ended
    };
  });
}

export async function cancel(id: string): Promise<void> {
  await answered(await fetched(`/api/jobs/${id}`, { method: "DELETE" }));
}
