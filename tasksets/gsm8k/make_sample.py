"""Writes sample.jsonl: word problems of our own in the form of GSM8K, worked out in steps that end in `#### number`.

Run in this folder: python make_sample.py > sample.jsonl
"""

import json
import random
import re

ROWS = 200
PEOPLE = "Amara Bruno Clara Dalia Emil Fatima Goran Hana Igor Juno Kofi Lena Mateo Nadia Omar Priya Quinn Rosa Stefan Tara".split()
GOODS = "apples pears lemons muffins notebooks pencils candles postcards marbles stickers buttons tiles bulbs badges shells".split()
PLACES = ["the market", "the school fair", "the village hall", "the harbour", "the garden club", "the library"]


def step(text, expression, value):
    """A sentence with its sum in GSM8K's calculator marks."""
    return f"{text} {expression} = <<{expression.replace(' ', '')}={value}>>{value}."


def boxes(draw):
    person, goods = draw.choice(PEOPLE), draw.choice(GOODS)
    count, each, given = draw.randint(3, 12), draw.randint(4, 15), draw.randint(2, 11)
    total = count * each
    return (
        f"{person} brings {count} boxes with {each} {goods} each to {draw.choice(PLACES)} and gives away {given} of the "
        f"{goods}. How many {goods} are left?",
        [
            step("The boxes hold", f"{count} * {each}", total),
            step("After the gifts there are", f"{total} - {given}", total - given),
        ],
        total - given,
    )


def shopping(draw):
    person, goods, others = draw.choice(PEOPLE), *draw.sample(GOODS, 2)
    first, second = draw.randint(2, 9), draw.randint(2, 9)
    price, other = draw.randint(2, 8), draw.randint(1, 6)
    cost = first * price + second * other
    purse = cost + draw.randint(1, 30)
    return (
        f"At {draw.choice(PLACES)}, {goods} cost ${price} apiece and {others} cost ${other} apiece. {person} has ${purse} "
        f"and buys {first} {goods} and {second} {others}. How many dollars does {person} have afterwards?",
        [
            step(f"The {goods} cost", f"{first} * {price}", first * price),
            step(f"The {others} cost", f"{second} * {other}", second * other),
            step("Together that is", f"{first * price} + {second * other}", cost),
            step("What remains is", f"{purse} - {cost}", purse - cost),
        ],
        purse - cost,
    )


def reading(draw):
    person = draw.choice(PEOPLE)
    pages, days, later = draw.randint(8, 30), draw.randint(3, 9), draw.randint(2, 6)
    done, rest = pages * days, later * draw.randint(5, 25)
    book = done + rest
    return (
        f"{person} is reading a book of {book} pages and read {pages} pages on each of the first {days} days. "
        f"To finish in {later} more days, reading the same number of pages on each, how many pages a day must it be?",
        [
            step("So far that makes", f"{pages} * {days}", done),
            step("Still to read are", f"{book} - {done}", rest),
            step("Each day needs", f"{rest} / {later}", rest // later),
        ],
        rest // later,
    )


def wages(draw):
    person = draw.choice(PEOPLE)
    rate, hours, days, fare = draw.randint(9, 24), draw.randint(3, 8), draw.randint(2, 6), draw.randint(2, 7)
    pay, fares = rate * hours * days, fare * days
    return (
        f"{person} helps at {draw.choice(PLACES)} on {days} days, {hours} hours each day, for ${rate} an hour. The bus there "
        f"and back costs ${fare} a day. How many dollars has {person} earned once the bus is paid?",
        [
            step("The hours come to", f"{hours} * {days}", hours * days),
            step("They pay", f"{rate} * {hours * days}", pay),
            step("The bus takes", f"{fare} * {days}", fares),
            step("That leaves", f"{pay} - {fares}", pay - fares),
        ],
        pay - fares,
    )


def garden(draw):
    length, width, gate = draw.randint(6, 30), draw.randint(4, 20), draw.randint(1, 3)
    price = draw.randint(3, 12)
    around = 2 * (length + width)
    return (
        f"A garden is {length} metres long and {width} metres wide. It gets a fence all around except for a gate of {gate} "
        f"metres. Fence costs ${price} a metre. What does the fence cost, in dollars?",
        [
            step("Half the way around is", f"{length} + {width}", length + width),
            step("The whole way is", f"2 * {length + width}", around),
            step("The fence is as long as", f"{around} - {gate}", around - gate),
            step("It costs", f"{around - gate} * {price}", (around - gate) * price),
        ],
        (around - gate) * price,
    )


def sharing(draw):
    first, second = draw.sample(PEOPLE, 2)
    goods = draw.choice(GOODS)
    friends, each, eaten = draw.randint(3, 9), draw.randint(3, 14), draw.randint(2, 12)
    start = friends * each + eaten
    mine = draw.randint(1, start - 1)
    return (
        f"{first} has {mine} {goods} and {second} has {start - mine}. They put them together, lose {eaten} and share the rest "
        f"evenly among {friends} people. How many {goods} does each person get?",
        [
            step("Together they have", f"{mine} + {start - mine}", start),
            step("After the loss there are", f"{start} - {eaten}", start - eaten),
            step("Each gets", f"{start - eaten} / {friends}", each),
        ],
        each,
    )


def percent(draw):
    person = draw.choice(PEOPLE)
    off, price, count = draw.choice([10, 20, 25, 50]), 20 * draw.randint(2, 15), draw.randint(2, 5)
    saved = price * off // 100
    return (
        f"A coat costs ${price}. In the sale its price falls by {off}%. {person} buys {count} of these coats in the sale. "
        f"How many dollars is that?",
        [
            step("The price falls by", f"{price} * {off} / 100", saved),
            step("A coat then costs", f"{price} - {saved}", price - saved),
            step("Together they cost", f"{count} * {price - saved}", count * (price - saved)),
        ],
        count * (price - saved),
    )


def journey(draw):
    slow, fast = draw.randint(3, 6) * 10, draw.randint(7, 11) * 10
    first, second = draw.randint(2, 5), draw.randint(2, 5)
    way = slow * first + fast * second
    return (
        f"A train runs for {first} hours at {slow} kilometres an hour and then for {second} hours at {fast} kilometres an "
        f"hour. How many kilometres does it run?",
        [
            step("The slow part is", f"{slow} * {first}", slow * first),
            step("The fast part is", f"{fast} * {second}", fast * second),
            step("The whole way is", f"{slow * first} + {fast * second}", way),
        ],
        way,
    )


KINDS = [boxes, shopping, reading, wages, garden, sharing, percent, journey]


def main():
    draw = random.Random(8)
    seen = set()
    while len(seen) < ROWS:
        question, steps, value = KINDS[len(seen) % len(KINDS)](draw)
        told = {int(number) for number in re.findall(r"\d+", question)}
        if question not in seen and value not in told:
            seen.add(question)
            print(json.dumps({"question": question, "answer": "\n".join(steps) + f"\n#### {value}"}))


main()
