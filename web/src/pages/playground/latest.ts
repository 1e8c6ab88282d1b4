// At most one request in flight; of those that wait, only the latest is sent.

export class Latest<Question, Answer> {
  private busy = false;
  private waiting: { question: Question } | null = null;

  constructor(
    private readonly ask: (question: Question) => Promise<Answer>,
    private readonly answered: (answer: Answer, question: Question) => void,
    private readonly failed: (problem: Error, question: Question) => void,
  ) {}

  async put(question: Question): Promise<void> {
    this.waiting = { question };
    if (this.busy) return;
    this.busy = true;
    while (this.waiting) {
      const next: { question: Question } = this.waiting;
      this.waiting = null;
      try {
        this.answered(await this.ask(next.question), next.question);
      } catch (problem) {
        this.failed(problem as Error, next.question);
      }
    }
    this.busy = false;
  }
}
