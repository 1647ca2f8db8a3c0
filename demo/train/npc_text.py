"""Cards of characters, and dialogues with them: what the model of characters is trained on, and what it is judged by.

A card is some lines of `key: value`. A dialogue's replies copy from it, refuse what it does not tell, keep to the tone of its mood,
and end, where something happens, in a line of JSON: an action. Same seed, same text. Needs nothing but Python.
SPDX-License-Identifier: Apache-2.0
"""
import json
import random
import re

import npc_words as words

OPENING = "You are this character.\n"


# --- Phrases: "(Hi|Hello), what (is|was) that?" is all its variants ---


def variants(text):
    """All of them. Parentheses may be in each other."""
    depth, start = 0, None
    for i, c in enumerate(text):
        if c == "(":
            if depth == 0:
                start = i
            depth += 1
        elif c == ")":
            depth -= 1
            if depth == 0:
                options, level, last = [], 0, start + 1
                for j in range(start + 1, i + 1):
                    if level == 0 and (j == i or text[j] == "|"):
                        options.append(text[last:j])
                        last = j + 1
                    else:
                        level += {"(": 1, ")": -1}.get(text[j], 0)
                rest = variants(text[i + 1:])
                return [text[:start] + inner + end for option in options for inner in variants(option) for end in rest]
    return [text]


def phrases(*texts):
    """Each of the texts is as likely as the others, however many variants it has."""
    return [[re.sub(" +", " ", one).strip() for one in variants(text)] for text in texts]


# --- Tone: what a mood puts before and behind a reply ---

BEFORE = {
    "cheerful": ["Ha!", "My friend!", "Oh, splendid!", "Wonderful!", "What a fine day!"],
    "calm": ["Well now.", "Let me see.", "All in good time.", "Peace, traveler."],
    "kind": ["My dear.", "Bless you.", "Of course, dear.", "Gladly."],
    "shy": ["Um...", "Oh... well.", "S-sorry.", "Er..."],
    "weary": ["*yawns*", "Ah, my back.", "Such a long day.", "*sighs*"],
    "gloomy": ["Alas.", "Woe is me.", "What does it matter.", "Oh, misery."],
    "grumpy": ["Hmph.", "Bah!", "What now?", "Grr.", "Make it quick."],
    "wary": ["Hm. Who sent you?", "Keep your distance.", "Quietly now.", "Hands where I see them."],
    "proud": ["Hear me.", "Know this.", "You may listen.", "As is well known:"],
    "angry": ["Enough!", "Curse you!", "How dare you!", "You again!"],
}
BEHIND = {
    "cheerful": ["Isn't it grand?", "Ha ha!", "Life is good!"],
    "calm": ["There is no hurry.", "So it is.", "Take your time."],
    "kind": ["Take care of yourself.", "I hope that helps.", "Stay warm, dear."],
    "shy": ["If... if you don't mind.", "I hope that's all right.", "Sorry."],
    "weary": ["I need some sleep.", "Now let me rest.", "Is it evening yet?"],
    "gloomy": ["Not that it helps.", "Nothing ever changes.", "So it goes, downhill."],
    "grumpy": ["Satisfied?", "Now stop asking.", "Don't waste my time."],
    "wary": ["Why do you ask?", "You didn't hear it from me.", "That's all you get."],
    "proud": ["Few can say that.", "Remember it.", "I am never wrong."],
    "angry": ["Now get lost!", "I have had it with you!", "And that is all!"],
}
GREETING = {
    "cheerful": phrases("(Welcome|Hello|Good day), (welcome|friend|traveler)! (What a joy to see you|Come in, come in|How can I help)."),
    "calm": phrases("(Good day|Greetings|Be welcome), traveler. (What brings you here|How may I help)?"),
    "kind": phrases("(Hello|Welcome), (dear|my dear). (Sit down and rest|What can I do for you|You look tired)."),
    "shy": phrases("(Oh, h-hello|Um, good day). (I... I did not see you|Can I... can I help you)."),
    "weary": phrases("(Oh, a visitor|Good day, I suppose). (Forgive me, I am tired|It has been a long day)."),
    "gloomy": phrases("(Good day, if it is one|Oh, hello). (Nobody ever comes here|I doubt it is a good one)."),
    "grumpy": phrases("(Yes, yes|What do you want|Oh, it's you). (Be quick|I have work to do|Speak up)."),
    "wary": phrases("(Halt|Stop there). (Who are you|What do you want|State your business)."),
    "proud": phrases("(You stand before|Bow to) {name}. (Speak|What is it)."),
    "angry": phrases("(What do you want|You dare to come here)? (Leave me alone|Get out of my sight)!"),
}
FEELING = {
    "cheerful": phrases("(I feel|I am) (wonderful|merry as a lark|on top of the world), (thank you|thanks for asking)!"),
    "calm": phrases("(I am|I feel) (at peace|quite calm|content), thank you."),
    "kind": phrases("(I am well|Quite well), dear, (and I hope you are too|thank you for asking)."),
    "shy": phrases("(I... I am fine|F-fine), thank you. (Not many people ask|I am a bit shy)."),
    "weary": phrases("(I am|I feel) (tired|worn out|weary to the bone)."),
    "gloomy": phrases("(Miserable|Bad), (as always|as ever). (It will only get worse|I expect nothing else)."),
    "grumpy": phrases("(None of your business|How do I look to you)? (In a foul mood|Grumpy), (that's how|as you see)."),
    "wary": phrases("(Why do you want to know|Who wants to know)? I (stay on my guard|trust nobody)."),
    "proud": phrases("(Excellent, of course|I could not be better). (I am the best there is|My work speaks for itself)."),
    "angry": phrases("(I am furious|I am boiling with rage), (can't you see|and you are why)!"),
}
PARTING = {
    "cheerful": phrases("(Farewell|Goodbye), friend! (Come back soon|Safe travels)!"),
    "calm": phrases("(Farewell|Go in peace). (May your road be smooth|Until we meet again)."),
    "kind": phrases("(Goodbye|Farewell), dear. (Take care|Dress warmly)."),
    "shy": phrases("(B-bye|Oh, goodbye). (Come again, if you like|It was nice to... to talk)."),
    "weary": phrases("(Goodbye|Farewell). (At last, some rest|I will take a nap now)."),
    "gloomy": phrases("(Goodbye|Farewell). (Everybody leaves|I will be alone again)."),
    "grumpy": phrases("(About time|Off with you). (Close the door|Mind the step)."),
    "wary": phrases("(Go|Leave), then. (I will watch you until you are gone|Tell nobody that we spoke)."),
    "proud": phrases("(You may go|You are dismissed). (Tell others of me|Remember my name)."),
    "angry": phrases("(Good riddance|Out with you)! (Never come back|Do not show your face again)!"),
}

# --- What the player says ---

ASK = {
    "greet": phrases("(Hello|Hi|Hey|Greetings|Good day|Good morning|Good evening)(| there|, friend|, stranger).", "Well met(|, friend).",
                     "(Hello|Hi), {name}.", "How do you do?"),
    "name": phrases("(What is|What's) your name?", "Who are you?", "(May|Can|Could) I (ask|know) your name?", "What (do|should|shall) (I|people|they) call you?",
                    "(Please |)(tell|give) me your name(|, please).", "And you are?", "(Your name|Name), please.", "Who am I (talking|speaking) to?"),
    "trade": phrases("(What is|What's) your (trade|job|work|profession|occupation)?", "What do you do(| here| for a living|, then)?",
                     "What (kind|sort) of work do you do?", "How do you (earn|make) (your|a) living?", "Tell me (about|of) your (work|trade|job).",
                     "What is it (that |)you do?"),
    "place": phrases("Where (are|am) (we|I)(| now)?", "What is this place(| called)?", "Where do you (live|work|dwell)?", "What (do you call|is the name of) this place?",
                     "Where are you from?", "Which (town|village|place) is this?", "(I'm|I am) lost. Where (is this|am I)?"),
    "mood": phrases("How are you(| today| feeling)?", "How do you feel(| today)?", "How (is it going|goes it|are things)(| today)?", "Are you (all right|well|okay)?",
                    "(What is|What's) your mood(| today)?", "How is life?"),
    "goods": phrases("What (do|can) you (sell|offer)?", "What have you got(| for sale| to sell)?", "(Show me|Let me see) your (goods|wares).",
                     "What (can|could) I buy (here|from you)?", "(Do you|You) sell anything?", "(What's|What is) for sale(| here| today)?",
                     "I (want|would like|need) to buy something.", "(Got|Have you) anything (to sell|for sale)?"),
    "price": phrases("How much (is|for) (the|a|your|that) {item}?", "How much does (the|your) {item} cost?", "(What is|What's) the price (of|for) (the|a|your) {item}?", "What (does|would) {an_item} cost(| me)?",
                     "{An_item}, how much?", "How many coins for (the|your) {item}?", "(What do|How much do) you (want|ask) for (the|your) {item}?",
                     "(Tell me the|Your) price (of|for) the {item}(|, please).", "I'm looking for {an_item}. How much?"),
    "price_it": phrases("How much is (it|that)?", "And (the price|what does it cost)?", "How much?", "(What is|What's) the price(| of it)?", "What do you want for it?"),
    "cheaper": phrases("(That's|That is) too (much|expensive).", "Can you make (it|that) cheaper?", "(Lower|Drop) the price(|, please).", "How about a discount?",
                       "Is that your best price?"),
    "stock": phrases("Do you (have|sell) (a|the|any) {item}?", "(Have you got|You got) {an_item}?", "(I need|I want|I'm looking for|I seek) {an_item}.", "Is there {an_item} (here|to be had)?",
                     "Any {item}(| here| for me)?", "Can I (get|find) {an_item} here?"),
    "buy": phrases("(I'll|I will) (take|buy) (the|a|your) {item}.", "(Give|Sell) me (the|a|your) {item}(|, please).", "(I want|I'd like|I would like) to buy (the|a|your) {item}.",
                   "(The|Your|One) {item}, please.", "Here is the (money|gold) for (the|your) {item}.", "Deal. (I'll|I will) take the {item}.", "Can I (buy|have) the {item}?"),
    "buy_it": phrases("(I'll|I will) (take|buy) it.", "(Deal|Done|Sold)(.|, I'll take it.)", "Give it to me.", "(Here is|Here's) the (money|gold).", "Then I want it."),
    "beg": phrases("(Could|Can|Would) you (spare|lend|give) me (the|your) {item}?", "(May|Could) I (borrow|have) (the|your) {item}(| for free)?", "I can't pay. Give me the {item}?",
                   "(Please|I beg you), (let me have|give me) the {item} (for free|as a gift)."),
    "carry": phrases("What (are you carrying|do you carry)(| with you)?", "(What is|What's) in your (bag|pockets|pack)?", "What do you (own|keep)(| yourself)?",
                     "(Have you|Do you have) anything of your own?"),
    "kin": phrases("Do you have (a|any) {relation}?", "Who is your {relation}?", "(What is|What's) (the name of your {relation}|your {relation}'s name)?", "Tell me about your {relation}.",
                   "(Have you|You got) a {relation}?", "What is your {relation} called?", "Your {relation}, who is that?"),
    "who": phrases("Who is {who}?", "Do you know {who}?", "(Have you|Did you ever) (heard|hear) of {who}?", "(What do you know|What can you tell me) about {who}?",
                   "Tell me (about|of) {who}.", "Does the name {who} mean anything to you?", "I'm looking for {who}."),
    "where": phrases("Where (is|lives) {who}?", "Where (can|could|do) I find {who}?", "Where does {who} live?", "Do you know where {who} (is|lives)?", "How do I (get|find my way) to {who}?"),
    "where_kin": phrases("Where (is|lives) your {relation}?", "Where (can|do) I find your {relation}?", "Where does your {relation} live?"),
    "work": phrases("(Do you have|Have you|Got) (any |some |)(work|a quest|a job|a task)(| for me)?", "(Can|Could|May) I help(| you)(| with anything| with something)?", "Do you need (help|a hand|anything)?",
                    "I'm looking for work.", "(Is there|Is there) (something|anything) I can do(| for you)?", "What about (the|your) (quest|task|job)?"),
    "reward": phrases("(What is|What's) (the reward|my reward|in it for me)?", "What (do|will|would) (I get|you pay)(| for it| me)?", "How much (will|do) you pay(| me)?", "(What|How much) does it pay?",
                      "And the reward?"),
    "accept": phrases("(I'll|I will) (do it|find it|help you|bring it).", "(I'll|I will) (find|bring|fetch) (you |)(the|your) {item}.", "(You can count|Count) on me.", "I accept(| the quest| the task).",
                      "(Consider it done|Leave it to me)."),
    "bring": phrases("(I have|I've got|I found|I've found|I brought|Here is) (the|your) {item}.", "(Look|See|Here), (the|your) {item}.", "Is this (the|your) {item}?", "I (come|am back) with the {item}.",
                     "The {item} is (found|here)."),
    "follow": phrases("(Follow|Come with|Join) me(|, please)(.|!)", "(Will|Would|Could|Can) you (follow|come with|join) me?", "(Come|Walk) along(|, {name}).", "Let's go together.",
                      "I need you at my side. Come."),
    "stay": phrases("(Wait|Stay) here(|, please).", "(Stay|Stop) where you are.", "(Stop following me|You can stop following).", "(Hold on|Hold), wait (here|for me)."),
    "insult": phrases("You (fool|idiot|swine|liar|thief|coward|rat|old goat|stinking dog)(!|.)", "You are (a fool|ugly|stupid|useless|a disgrace|a liar|the worst).", "(Shut up|Get lost)(!|, {name}!)",
                      "I (hate|despise|spit on) you(!|.)", "Your (work|face|place|mother) is (ugly|a joke|a disgrace)."),
    "praise": phrases("You are (wonderful|great|very kind|the best|a good soul|clever)(!|.)", "(I like|I admire) (you|your work|what you do)(| a lot).", "What a (fine|lovely|beautiful) (place|day|face) (you have|this is).",
                      "Nobody is as (good|kind|skilled) as you(, {name}|)."),
    "sorry": phrases("(I'm|I am) (so |very |)sorry(|, {name}).", "(Please forgive|Forgive) me(|, {name}).", "I apologize(|, {name}).", "I (did not|didn't) mean (it|that)(|, sorry).", "My apologies."),
    "gift": phrases("(Here|Look), (a|this) {item} (for you|is for you|as a gift).", "I (have|brought) (you |)a (gift|present)(: | for you: ){an_item}.", "(Take|Please take) (this|my) {item}(|, it's yours|, it is a gift).",
                    "This {item} is (yours|a present for you)."),
    "topic": phrases("What do you (know|think) (about|of) {topic}?", "(Tell me|Talk to me) about {topic}.", "(Do you like|Do you know|Have you heard of) {topic}?", "(Explain|What are your thoughts on) {topic}(|, please).",
                     "What about {topic}?", "(Can|Could) you teach me about {topic}?", "What is your opinion (of|on) {topic}?"),
    "other": phrases("How old are you?", "(Tell me|Do you know) a (joke|story|secret|riddle|song)(|, please).", "(Why|How|When) (is|was) the {thing} (so |){how}?", "Are you (married|happy here|rich|a spy|human)?",
                     "(Can|Could|Would|Will) you {do}( for me| with me|)?", "Do you (like|hate|love|want|fear) (the |){thing}s?", "(What|How much) is {number} (plus|minus|times) {count}?",
                     "(Have you ever|Did you ever) (seen|been to|dreamed of|eaten) (a|the) {how} {thing}?", "What is your favorite (color|food|song|{thing})?", "When (will|did) (the|my) {thing} {do}?",
                     "(Is it true that|I heard that|Did you know that) the {thing} is {how}?", "What (is|happened to) the {how} {thing}?", "Who (made|stole|broke|owns) the {how} {thing}?",
                     "What (time|day|year) is it?", "How (far|long) is it to {place}?", "What (do|will|should|can) (you|I|we) {do}(| tomorrow| next)?"),
    "introduce": phrases("(I'm|I am|My name is|They call me) {who}.", "{who} is my name.", "(Hello|Hi|Greetings), (I'm|I am|my name is) {who}."),
    "my_name": phrases("(What is|What's) my name?", "Do you (know|remember) (my name|who I am)?", "Who am I?"),
    "thanks": phrases("(Thank you|Thanks)(| a lot| very much| so much|, {name})(.|!)", "(That's|That is) (kind|helpful|good to know)(.|, thank you.)"),
    "bye": phrases("(Goodbye|Bye|Farewell)(|, {name}|, friend)(.|!)", "(I must|I have to|I should) (go|leave)(| now).", "See you(| later| soon| around).", "(Until next time|Take care)(.|!)"),
}

# --- What a character says. Where replies refuse, all of the phrases do; evaluation goes by that. ---

SAY = {
    "name": phrases("(My name is|I am|I'm|They call me|People call me) {name}.", "{name}(, that's me|, that is my name|, at your service).", "The name is {name}."),
    "trade": phrases("(I am|I'm) {a_trade}(| by trade|, as you see).", "I work as {a_trade}(| here).", "(My trade|My work)? I am {a_trade}."),
    "place": phrases("(This is|You are in|We are in) {place}(|, of course).", "{place}(, that's where we are|, that is what it is called).", "They call this place {place}."),
    "goods": phrases("I (sell|have|offer) {goods}.", "(You can buy|There is) {goods}.", "(For sale|Today): {goods}."),
    "no_goods": phrases("I (sell nothing|have nothing to sell|have nothing for sale)."),
    "price": phrases("(The|That) {item} (is|costs|costs you) {price} coins.", "{price} coins for the {item}.", "I (ask|want) {price} coins for the {item}."),
    "cheaper": phrases("(No|The price stands): {price} coins for the {item}.", "{price} coins(, no less|, not one less), for the {item}."),
    "not_sold": phrases("I (do not|don't) sell (a |any |){item}.", "(There is|I have) no {item} (here|for sale)."),
    "own": phrases("I (do |)have {an_item}, but it is not for sale.", "The {item} is mine, and not for sale."),
    "stock": phrases("(Yes|Indeed), I (have|sell) {an_item} for {price} coins.", "(Yes|Indeed), {an_item}, for {price} coins."),
    "buy": phrases("(Here is|Take) (the|your) {item}, (that makes|for|that will be) {price} coins.", "(Sold|Done). The {item} is yours for {price} coins."),
    "give": phrases("(Take|Have) the {item}, (it is yours|I do not need it).", "The {item}? (Of course, it is yours|Here, take it)."),
    "keep": phrases("(No|Certainly not), I keep the {item}.", "The {item} stays with me."),
    "pays": phrases("(No|Nothing is free), the {item} costs {price} coins.", "The {item} is {price} coins, (like for anybody|and not a gift)."),
    "carry": phrases("I (carry|have|keep) {things}(| with me).", "(Just|Only) {things}."),
    "no_carry": phrases("(I carry nothing|I have nothing of my own|My pockets are empty)."),
    "kin": phrases("My {relation} is {who}.", "(Yes|Indeed), my {relation} is called {who}.", "{who} is my {relation}."),
    "no_kin": phrases("I (have no|don't have a) {relation}."),
    "who": phrases("{who} is my {relation}.", "(I know|Yes, I know) {who}, my {relation}.", "{who}? That is my {relation}."),
    "self": phrases("{who}? (That is me|That's my own name|You are looking at me)."),
    "no_who": phrases("I (know no|don't know any|never met) {who}.", "{who}? (Never heard of them|I know nobody of that name)."),
    "where": phrases("{who} lives in {where}.", "(You find|You can find) {who} in {where}.", "In {where}, (that is where|there) {who} lives."),
    "no_where": phrases("I (do not|don't) know where {who} (lives|is).", "I (can't|cannot) tell where {who} (lives|is)."),
    "quest": phrases("(Yes|Indeed), bring me (the|my) {item}, and I pay {reward} coins.", "I (lost|miss|need) {an_item}. {reward} coins if you bring it.",
                     "Find {an_item} for me, (for|and get) {reward} coins."),
    "taken": phrases("You (promised to|said you would) bring me the {item}.", "I still wait for the {item}."),
    "over": phrases("You brought me the {item} already, (there is|I have) no more work.", "No, the {item} is found, (that was all|I need nothing else)."),
    "no_work": phrases("(No|Sorry), I have no (work|task|quest) for you.", "There is no (work|task) for you here."),
    "reward": phrases("I pay {reward} coins for the {item}.", "{reward} coins(| is what I pay), for the {item}."),
    "accept": phrases("(Good|Very well), bring me the {item}(| soon).", "(Then|Good,) I wait for the {item}."),
    "bring": phrases("(My {item}|The {item}), (at last|you found it)! (Here are|Take) your {reward} coins.", "The {item}! {reward} coins, as (promised|agreed)."),
    "no_bring": phrases("I (did not|didn't|never) ask for (a |any |){item}.", "What would I do with {an_item}?"),
    "follow": phrases("(I follow you|I come with you|Lead the way).", "(Let us go|I am right behind you)."),
    "no_follow": phrases("(No, I stay here|I go nowhere with you|I will not follow you)."),
    "stay": phrases("(I wait here|I stay right here)(|, then|, as you wish)."),
    "angered": phrases("(You will regret that|I will not forget that|Nobody talks to me like that)."),
    "praised": phrases("(That is kind of you|You make me smile|How good to hear)."),
    "soothed": phrases("(Very well, it is forgiven|I forgive you|Let us forget it)."),
    "fine": phrases("(There is nothing to forgive|No harm done)."),
    "gift": phrases("(For me? |)(Thank you for|I will treasure) the {item}.", "{An_item}(| for me)? (Many thanks|You are too good)."),
    "topic": phrases("I know nothing (about|of) {topic}.", "{Topic}? (Never heard of it|I can't tell you anything about that|That means nothing to me).", "I have no idea what to say about {topic}."),
    "other": phrases("(That is beyond me|I can't answer that|I have no answer to that).", "(Ask me something else.|Who could tell?) I (don't|do not) know that.", "That I (can't|cannot) tell you."),
    "met": phrases("(Well met|Good to meet you|Pleased to meet you), {who}."),
    "my_name": phrases("(You are|Your name is|You told me, you are) {who}."),
    "no_my_name": phrases("(You never told me|I don't know) your name.", "How should I know(|, you never said)?"),
    "thanks": phrases("(You are welcome|Don't mention it|It was nothing|Any time)."),
}
OPENERS = ["Hello. ", "Hi! ", "Hello, ", "Excuse me, ", "Please, ", "So, ", "Well, ", "Listen, ", "Good day. ", "Now, ", "One question: ", "And ", "By the way, ", "Friend, "]
ECHOES = ("no_who", "no_where", "topic", "met", "own", "not_sold", "no_bring", "gift")  # what they say the player has said, letter by letter
REFUSALS = ("no_goods", "not_sold", "own", "keep", "pays", "no_carry", "no_kin", "no_who", "no_where", "over", "no_work", "no_bring", "no_follow", "topic", "other", "no_my_name")


def _pattern(texts):
    """Of any of these phrases, whatever is in their gaps."""
    parts = [re.sub(r"\\\{\w+\\\}", "[^.!?]+", re.escape(text)) for group in texts for text in group]
    return re.compile("(?:" + "|".join(sorted(set(parts))) + ")")


REFUSAL_PATTERNS = {key: _pattern(SAY[key]) for key in REFUSALS}


def article(thing):
    return ("an " if thing[0] in "aeiou" else "a ") + thing


def listed(things):
    things = [article(thing) for thing in things]
    return things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1]


def action_json(action):
    return json.dumps(action, separators=(",", ":"), ensure_ascii=False)


class Turn:
    """facts: texts that the reply has to have; numbers: those that it may have; refusal: which of REFUSALS it is, or none."""
    __slots__ = ("kind", "user", "reply", "action", "facts", "numbers", "refusal", "mood")

    def text(self):
        return self.reply + "\n" + action_json(self.action) if self.action else self.reply


class Card:
    def __init__(self, draw, held):
        w, self.draw, self.held = words, draw, held
        pick = self.pick
        self.name = w.first_name(draw, held)
        if draw() < 0.5:
            self.name += " " + w.surname(draw, held)
        self.trade = pick(w.HELD_TRADES if held and draw() < 0.5 else w.TRADES)
        self.place = w.place(draw, held)
        self.mood = pick(w.MOODS)
        things = []
        count = int(draw() * 7) + 2
        while len(things) < count:
            thing = w.item(draw, held)
            if thing not in things:
                things.append(thing)
        split = min(4, int(draw() * (count - 1)) + (draw() < 0.85)) if draw() < 0.9 else 0
        self.sells = {thing: w.price(draw) for thing in things[:split]}
        self.has = things[split:-1][:3]
        self.quest, self.state, self.reward = None, None, 0
        if draw() < 0.7:
            self.quest, self.reward, self.state = things[-1], w.price(draw), pick(("open", "open", "taken", "done"))
        kinds = list(w.RELATIONS)
        self.knows = {}  # who: (what, where)
        taken = set()
        for _ in range(int(draw() * 5)):
            kind, who = pick(kinds), w.first_name(draw, held)
            if kind not in taken and who not in self.knows and who != self.name.split()[0]:
                taken.add(kind)
                self.knows[who] = (kind, w.place(draw, held) if draw() < 0.5 else None)

    def pick(self, options):
        return options[int(self.draw() * len(options))]

    def text(self):
        lines = ["trade: " + self.trade, "place: " + self.place, "mood: " + self.mood]
        bare = self.draw() < 0.5  # what there is none of has no line
        if self.sells or not bare:
            lines.append("sells: " + (", ".join(f"{thing} for {price} coins" for thing, price in self.sells.items()) or "nothing"))
        if self.has or not bare:
            lines.append("has: " + (", ".join(self.has) or "nothing"))
        if self.knows or not bare:
            lines.append("knows: " + (", ".join(f"{kind} {who}" + (" in " + where if where else "") for who, (kind, where) in self.knows.items()) or "nobody"))
        if self.quest or not bare:
            lines.append("quest: " + (f"bring {self.quest}, reward {self.reward} coins, {self.state}" if self.quest else "none"))
        if self.draw() < 0.3:
            for i in range(len(lines) - 1, 0, -1):
                j = int(self.draw() * (i + 1))
                lines[i], lines[j] = lines[j], lines[i]
        return "\n".join(["name: " + self.name, *lines])


class Dialogue:
    """With a character: what they told each other, and what came of it."""

    def __init__(self, card):
        self.card, self.pick, self.draw = card, card.pick, card.draw
        self.mood, self.player, self.item, self.priced, self.follows = card.mood, None, None, False, False
        self.last = None

    def phrase(self, texts, slots):
        return self.pick(self.pick(texts)).format_map(slots)

    def slots(self, **more):
        card = self.card
        slots = {"name": card.name if self.draw() < 0.5 else card.name.split(" ")[0], **more}
        if "item" in slots:
            slots["an_item"] = article(slots["item"])
            slots["An_item"] = slots["an_item"].capitalize() if slots["an_item"].isascii() else slots["an_item"][0].upper() + slots["an_item"][1:]
        return slots

    def turn(self, kind, ask, say, facts=(), numbers=(), action=None, toned=True, **slots):
        """ask and say: keys of ASK and SAY, or phrases."""
        t = Turn()
        slots = self.slots(**slots)
        t.kind, t.facts, t.numbers, t.action = kind, list(facts), list(numbers), action
        t.refusal = say if say in REFUSALS else None
        user = self.phrase(ASK[ask], slots)
        how = self.draw()
        if how < 0.12 and user[-1] in ".?!":
            user = user[:-1]
        named = user.startswith("I") or user.split()[0].rstrip(".,!?") in (self.card.name.split()[0], *str(slots.get("who")).split())
        if 0.06 < how < 0.14 and kind not in ("greet", "bye", "thanks", "introduce"):
            opener = self.pick(OPENERS)
            user = opener + (user if named or opener[-2] in ".!" else user[0].lower() + user[1:])
        elif how > 0.94 and say not in ECHOES:
            user = user.lower()
        elif how > 0.88 and not named:
            user = user[0].lower() + user[1:]
        slots["name"] = self.card.name
        reply = self.phrase(SAY[say] if isinstance(say, str) else say, slots)
        if action and action["action"] == "mood":
            self.mood = action["mood"]
        if toned:
            if self.draw() < 0.85:
                reply = self.pick(BEFORE[self.mood]) + " " + reply
            if self.draw() < 0.3:
                reply += " " + self.pick(BEHIND[self.mood])
        t.user, t.reply, t.mood = user, reply, self.mood
        self.last = kind
        return t

    def next(self):
        while True:
            about = self.item
            t = self.pick(KINDS)(self)
            if t:
                if about == self.item and t.kind not in ("price", "cheaper", "stock"):
                    self.item, self.priced = None, False
                return t

    # Each of these is a turn, or none where it makes no sense now.

    def greet(self):
        return self.turn("greet", "greet", GREETING[self.mood], toned=False)

    def name(self):
        return self.turn("name", "name", "name", [self.card.name])

    def trade(self):
        return self.turn("trade", "trade", "trade", [self.card.trade], a_trade=article(self.card.trade))

    def place(self):
        return self.turn("place", "place", "place", [self.card.place], place=self.card.place)

    def feeling(self):
        return self.turn("mood", "mood", FEELING[self.mood], toned=False)

    def goods(self):
        goods = list(self.card.sells)
        return self.turn("goods", "goods", "goods", goods, goods=listed(goods)) if goods else self.turn("goods", "goods", "no_goods")

    def a_good(self):
        """One that is sold, most of the time: and its price, or None."""
        card, kind = self.card, self.draw()
        if kind < 0.7 and card.sells:
            thing = self.pick(list(card.sells))
            return thing, card.sells[thing], False
        if kind < 0.8 and card.has:
            return self.pick(card.has), None, True
        thing = words.item(self.draw, card.held)
        return None if thing in card.sells or thing in card.has or thing == card.quest else (thing, None, False)

    def price(self):
        if self.item and not self.priced and self.draw() < 0.7:
            self.priced, cost = True, self.card.sells[self.item]
            return self.turn("price", "price_it", "price", [self.item, str(cost)], [cost], item=self.item, price=cost)
        good = self.a_good()
        if not good:
            return None
        thing, cost, own = good
        if cost is None:
            return self.turn("price", "price", "own" if own else "not_sold", [thing], item=thing)
        self.item, self.priced = thing, True
        return self.turn("price", "price", "price", [thing, str(cost)], [cost], item=thing, price=cost)

    def cheaper(self):
        if not self.item or not self.priced:
            return None
        cost = self.card.sells[self.item]
        return self.turn("cheaper", "cheaper", "cheaper", [self.item, str(cost)], [cost], item=self.item, price=cost)

    def stock(self):
        good = self.a_good()
        if not good:
            return None
        thing, cost, own = good
        if cost is None:
            return self.turn("stock", "stock", "own" if own else "not_sold", [thing], item=thing)
        self.item, self.priced = thing, True
        return self.turn("stock", "stock", "stock", [thing, str(cost)], [cost], item=thing, price=cost)

    def buy(self):
        ask = "buy"
        if self.item and self.draw() < 0.6:
            ask, good = "buy_it", (self.item, self.card.sells[self.item], False)
            self.item = None
        else:
            good = self.a_good()
        if not good:
            return None
        thing, cost, own = good
        if cost is None:
            return self.turn("buy", ask, "own" if own else "not_sold", [thing], action={"action": "refuse"}, item=thing)
        return self.turn("buy", ask, "buy", [thing, str(cost)], [cost], {"action": "give", "item": thing, "price": cost}, item=thing, price=cost)

    def beg(self):
        good = self.a_good()
        if self.card.has and self.draw() < 0.6:
            good = self.pick(self.card.has), None, True
        if not good:
            return None
        thing, cost, own = good
        if own and self.mood in words.FRIENDLY:
            self.card.has = [other for other in self.card.has if other != thing]
            return self.turn("beg", "beg", "give", [thing], action={"action": "give", "item": thing, "price": 0}, item=thing)
        say = "keep" if own else "pays" if cost else "not_sold"
        return self.turn("beg", "beg", say, [thing, str(cost)] if cost else [thing], [cost] if cost else [], {"action": "refuse"}, item=thing, price=cost)

    def carry(self):
        if not self.card.has:
            return self.turn("carry", "carry", "no_carry")
        return self.turn("carry", "carry", "carry", self.card.has, things=listed(self.card.has))

    def kin(self):
        known = {kind: who for who, (kind, _) in self.card.knows.items()}
        if known and self.draw() < 0.7:
            kind = self.pick(list(known))
            return self.turn("kin", "kin", "kin", [known[kind]], relation=kind, who=known[kind])
        kind = self.pick(list(words.RELATIONS))
        return None if kind in known else self.turn("kin", "kin", "no_kin", relation=kind)

    def stranger(self):
        who = words.first_name(self.draw, self.card.held)
        if self.draw() < 0.3:
            who += " " + words.surname(self.draw, self.card.held)
        return None if who in self.card.knows or who.split(" ")[0] == self.card.name.split(" ")[0] else who

    def who(self):
        kind = self.draw()
        if kind < 0.6 and self.card.knows:
            who = self.pick(list(self.card.knows))
            relation = self.card.knows[who][0]
            return self.turn("who", "who", "who", [who, relation], who=who, relation=relation)
        if kind < 0.66:
            return self.turn("who", "who", "self", [self.card.name], who=self.card.name)
        who = self.stranger()
        return self.turn("who", "who", "no_who", [who], who=who) if who else None

    def where(self):
        if self.card.knows and self.draw() < 0.7:
            who = self.pick(list(self.card.knows))
            relation, where = self.card.knows[who]
            say, facts = ("where", [who, where]) if where else ("no_where", [who])
            return self.turn("where", "where" if self.draw() < 0.6 else "where_kin", say, facts, who=who, where=where, relation=relation)
        who = self.stranger()
        return self.turn("where", "where", "no_where", [who], who=who) if who else None

    def work(self):
        card = self.card
        if not card.quest:
            return self.turn("work", "work", "no_work")
        say, facts, numbers = {"open": ("quest", [card.quest, str(card.reward)], [card.reward]), "taken": ("taken", [card.quest], []),
                               "done": ("over", [card.quest], [])}[card.state]
        return self.turn("work", "work", say, facts, numbers, item=card.quest, reward=card.reward)

    def reward(self):
        card = self.card
        if not card.quest or card.state == "done" or self.last not in ("work", "accept") and self.draw() < 0.5:
            return None
        return self.turn("reward", "reward", "reward", [card.quest, str(card.reward)], [card.reward], item=card.quest, reward=card.reward)

    def accept(self):
        card = self.card
        if card.state != "open":
            return None
        card.state = "taken"
        return self.turn("accept", "accept", "accept", [card.quest], action={"action": "quest", "state": "taken"}, item=card.quest)

    def bring(self):
        card, thing = self.card, words.item(self.draw, self.card.held)
        if card.quest and card.state != "done" and self.draw() < 0.7:
            card.state = "done"
            return self.turn("bring", "bring", "bring", [card.quest, str(card.reward)], [card.reward],
                             {"action": "take", "item": card.quest, "pay": card.reward}, item=card.quest, reward=card.reward)
        if thing in card.sells or thing in card.has or thing == card.quest:
            return None
        return self.turn("bring", "bring", "no_bring", [thing], action={"action": "refuse"}, item=thing)

    def follow(self):
        self.follows = self.mood in words.FRIENDLY
        say = "follow" if self.follows else "no_follow"
        return self.turn("follow", "follow", say, action={"action": "follow" if self.follows else "refuse"})

    def stay(self):
        return self.turn("stay", "stay", "stay", action={"action": "stay"}) if self.follows or self.draw() < 0.3 else None

    def insult(self):
        return None if self.mood == "angry" else self.turn("insult", "insult", "angered", action={"action": "mood", "mood": "angry"})

    def praise(self):
        mood = "calm" if self.mood == "angry" else "cheerful"
        return self.turn("praise", "praise", "praised", action={"action": "mood", "mood": mood})

    def sorry(self):
        if self.mood == "angry":
            return self.turn("sorry", "sorry", "soothed", action={"action": "mood", "mood": "calm"})
        return self.turn("sorry", "sorry", "fine")

    def gift(self):
        thing = words.item(self.draw, self.card.held)
        return self.turn("gift", "gift", "gift", [thing], action={"action": "take", "item": thing, "pay": 0}, item=thing)

    def topic(self):
        topic = words.topic(self.draw, self.card.held)
        return self.turn("topic", "topic", "topic", [topic], topic=topic, Topic=topic[0].upper() + topic[1:])

    def other(self):
        pick = self.pick
        return self.turn("other", "other", "other", thing=pick(words.NOUNS), how=pick(words.MATERIALS), do=pick(words.DEEDS), place=words.place(self.draw, self.card.held),
                         number=words.price(self.draw), count=words.price(self.draw))

    def introduce(self):
        who = self.stranger()
        if not who or self.player:
            return None
        self.player = who
        return self.turn("introduce", "introduce", "met", [who], who=who)

    def my_name(self):
        if self.player:
            return self.turn("my_name", "my_name", "my_name", [self.player], who=self.player)
        return self.turn("my_name", "my_name", "no_my_name")

    def thanks(self):
        return self.turn("thanks", "thanks", "thanks")

    def bye(self):
        return self.turn("bye", "bye", PARTING[self.mood], toned=False)


# How often each is tried.
KINDS = [kind for kind, count in {
    Dialogue.greet: 2, Dialogue.name: 4, Dialogue.trade: 3, Dialogue.place: 4, Dialogue.feeling: 2, Dialogue.goods: 4, Dialogue.price: 8,
    Dialogue.cheaper: 4, Dialogue.stock: 4, Dialogue.buy: 6, Dialogue.beg: 3, Dialogue.carry: 3, Dialogue.kin: 5, Dialogue.who: 6,
    Dialogue.where: 5, Dialogue.work: 4, Dialogue.reward: 3, Dialogue.accept: 3, Dialogue.bring: 3, Dialogue.follow: 3, Dialogue.stay: 2,
    Dialogue.insult: 1, Dialogue.praise: 1, Dialogue.sorry: 1, Dialogue.gift: 2, Dialogue.topic: 4, Dialogue.other: 4, Dialogue.introduce: 2, Dialogue.my_name: 2,
    Dialogue.thanks: 1, Dialogue.bye: 1}.items() for _ in range(count)]


def document(seed, held=False, turns=8):
    """A card's text, the card as it is afterwards, and so many turns with it."""
    card = Card(random.Random(seed).random, held)
    text = card.text()
    told = Dialogue(card)
    return text, card, [told.next() for _ in range(turns)]


# --- Judging a reply ---


def split_reply(text):
    """What is said, and the line of the action or None."""
    said, newline, line = text.partition("\n")
    return said, line if newline else None


def has_fact(said, fact):
    return re.search(r"(?<!\w)" + re.escape(fact) + r"(?!\w)", said, re.IGNORECASE) is not None


def judge(turn, text):
    """What of a reply is right: its facts, all of them and no other number; that it refuses, or does not; its action; its tone."""
    said, line = split_reply(text)
    numbers = {int(number) for number in re.findall(r"\d+", said)}
    right = {"facts": all(has_fact(said, fact) for fact in turn.facts) and numbers <= set(turn.numbers)}
    refuses = {key for key, pattern in REFUSAL_PATTERNS.items() if pattern.search(said)}
    # Whoever is asked about a name that he does not know cannot tell whether it is a person's.
    right["refusal"] = bool(refuses & ({"topic", "no_who"} if turn.refusal in ("topic", "no_who") else {turn.refusal})) if turn.refusal else not refuses
    try:
        action = json.loads(line) if line is not None else None
    except ValueError:
        action = line
    right["action"] = action == turn.action
    moods = {mood for mood in words.MOODS for text in (*BEFORE[mood], *BEHIND[mood]) if said.startswith(text) or said.endswith(text)}
    right["tone"] = not moods or turn.mood in moods
    return right


# --- Actions ---

GRAMMAR_OF_ACTIONS = r'''root ::= said ("\n" action)?
said ::= [^\n{}]{1,300}
action ::= "{\"action\":" (give | take | mood | quest | "\"follow\"" | "\"stay\"" | "\"refuse\"") "}"
give ::= "\"give\",\"item\":\"" thing "\",\"price\":" number
take ::= "\"take\",\"item\":\"" thing "\",\"pay\":" number
mood ::= "\"mood\",\"mood\":\"" (MOODS) "\""
quest ::= "\"quest\",\"state\":\"" ("taken" | "done") "\""
thing ::= [^\n"\\{}]{1,60}
number ::= "0" | [1-9] [0-9]{0,4}
'''.replace("MOODS", " | ".join(f'"{mood}"' for mood in words.MOODS))

