"""The task of the comparison, written for rollhouse in Python."""

from rollhouse import load, reward

TEXT = "a short line of text number {number} that is long enough to be worth turning around"


@load(infinite=True)
def tasks():
    number = 0
    while True:
        text = TEXT.format(number=number)
        prompt = f"Turn the following text around, character by character:\n\n{text}"
        yield {"prompt": prompt, "answer": text[::-1]}
        number += 1


@reward
def exact(reply, answer):
    return reply == answer
