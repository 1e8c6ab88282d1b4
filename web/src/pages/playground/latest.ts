// At most one request in flight; of those that wait, only the latest is sent.

export class Latest<Request, Answer> {
  private busy = false;
  private waiting: { request: Request } | null = null;

  constructor(
    private readonly send: (request: Request) => Promise<Answer>,
    private readonly answered: (answer: Answer, request: Request) => void,
    private readonly failed: (problem: Error, request: Request) => void,
  ) {}

  async put(request: Request): Promise<void> {
    this.waiting = { request };
    if (this.busy) return;
    this.busy = true;
    while (this.waiting) {
      const next: { request: Request } = this.waiting;
      this.waiting = null;
      try {
        this.answered(await this.send(next.request), next.request);
      } catch (problem) {
        this.failed(problem as Error, next.request);
      }
    }
    this.busy = false;
  }
}
