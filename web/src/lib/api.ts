// Requests to the server: JSON, binary arrays, and the events of background jobs.

export class ApiError extends Error {
  constructor(
    readonly status: number, // 0: no answer
    message: string,
    readonly body: Record<string, any> = {},
  ) {
    super(message);
  }
}

async function send(path: string, options: RequestInit): Promise<Response> {
  const response = await fetch(path, options).catch((problem: Error) => {
    throw problem.name === "AbortError" ? problem : new ApiError(0, "the server does not answer; is qkv studio still running?");
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error ?? `the server answered ${response.status}`, body);
}

function sendJson(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  return send(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send(path, { signal })).json();
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await sendJson(path, body, signal)).json();
}

export type NumberArray = Float32Array | Float64Array | Uint8Array | Int32Array;
export interface Arrays<Head> {
  head: Head;
  arrays: Record<string, { shape: number[]; data: NumberArray }>;
}

const TYPES = { float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int32: Int32Array };

export async function postForArrays<Head>(path: string, body: unknown, signal?: AbortSignal): Promise<Arrays<Head>> {
  return unpackArrays<Head>(await (await sendJson(path, body, signal)).arrayBuffer());
}

// Reads what responses.py's array_response wrote.
export function unpackArrays<Head>(bytes: ArrayBuffer): Arrays<Head> {
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  const arrays: Arrays<Head>["arrays"] = {};
  for (const [name, { dtype, shape, offset }] of Object.entries<any>(head.arrays)) {
    const count = shape.reduce((product: number, side: number) => product * side, 1);
    const type = TYPES[dtype as keyof typeof TYPES];
    arrays[name] = { shape, data: new type(bytes, 4 + length + offset, count) };
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

// Follows a job until it ends; `onevent` gets every event. Abort it when nobody reads the events any more: a browser
// has only six connections to a server, and each stream takes one.
export function followJob<Result>(id: string, onevent: (event: any) => void, signal: AbortSignal): Promise<JobState<Result>> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const source = new EventSource(`/api/jobs/${id}/events`);
    const getState = () => get<JobState<Result>>(`/api/jobs/${id}`, signal);
    const fail = (problem: unknown) => {
      close();
      reject(problem);
    };
    const aborted = () => fail(signal.reason);
    const close = () => {
      source.close();
      signal.removeEventListener("abort", aborted);
    };
    signal.addEventListener("abort", aborted);
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      onevent(event);
      if (!["done", "failed", "cancelled"].includes(event.state)) return;
      close();
      getState().then(resolve, reject);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) fail(new ApiError(0, "the server no longer answers"));
      else getState().catch(fail); // otherwise the browser would try forever to reach a stopped server
    };
  });
}

export async function cancelJob(id: string): Promise<void> {
  await send(`/api/jobs/${id}`, { method: "DELETE" });
}
