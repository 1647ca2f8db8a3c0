"""Words that cards and dialogues of characters are made of: lists, and names that nobody has heard yet.

An invented word is held out if a checksum of it says so: training never sees it, evaluation sees no other. So are the nouns and the
trades of the second lists.
SPDX-License-Identifier: Apache-2.0
"""
import zlib

ONSETS = ("b br bl c ch cl cr d dr dw f fl fr g gl gr gw h hr j k kh kl kr l ll m n p ph pl pr qu r rh s sc sh sk sl sm sn sp st str sv sw t th "
          "tr tw v vr w wh wr y z zh").split() + [""] * 6
VOWELS = "a e i o u a e i o u ae ai au ea ee ei eo ia ie io oa oo ou ua ue y".split()
CODAS = ("b ch ck d dd f ff g gg k l ld lf lk ll lm ln lt m mb mp n nd ng nk nn nt p r rd rg rk rl rm rn rr rs rt rth s sh sk ss st t th tt v w x z "
         "zz").split() + [""] * 30
PLAIN = ("b c d f g h j k l m n p r s t v w br dr th tr".split(), "a e i o u a e o".split(), ["", "", "", "", "n", "r", "l", "m", "s", "n", "d"])
ENDINGS = ("a e i o an ar as el en er eth ia ian ic id iel in ina ir is ish ith la len lin lo mar mir na nor o on or os ra ric rin ro sa ta ton us "
           "vin wen win wyn ya").split()
RARE = "á é í ó ú ä ö ü å ø ñ ç ê".split()

PLACE_FIRST = ("Ash Birch Black Bramble Bright Cold Copper Crow Deep Dragon Dry Dusk East Elder Elm Ever Far Fern Fog Fox Frost Gold Grand Gray "
               "Green Hallow Hawk Hazel High Hollow Honey Iron Kings Lake Lark Last Little Long Lost Low Maple Mill Mist Moon Moss New North Oak Old "
               "Otter Pine Queens Raven Red River Rook Rose Salt Sand Shadow Silver Sleepy Snow South Spring Star Stone Storm Summer Sun Swan Thorn "
               "Three Thunder Timber Twin Under Upper Wal Wander West White Wild Willow Wind Winter Wolf Wood Wren Yarrow").split()
PLACE_LAST = ("Abbey Bank Bay Bend Bridge Brook Castle Cliff Court Cross Crossing Dale End Falls Farm Fen Field Ford Forge Gate Glen Green Grove Hall "
              "Harbor Haven Heath Hill Hold Hollow House Inn Isle Keep Lake Landing March Market Marsh Meadow Mill Moor Mouth Pass Point Pond Port Post "
              "Reach Rest Ridge Rock Run Shore Spring Stead Street Tower Vale View Wall Watch Water Well Wick Wood Yard").split()
SURNAME_LAST = ("axe bane bell berry blade born bow brand brook brow burn cloak crest cross crow dale dew down fall fellow field fist foot ford gate "
                "glass hand hart hawk heart helm hill hold horn land leaf less lock maker man mane mantle more oak pike quill ridge river root run "
                "seeker shade shield shore singer smith song spear staff star step stone storm stride strong thorn tongue tree vale walker ward water "
                "weaver whisper wind wing wise wood worth wright").split()

TRADES = ("actor alchemist apothecary archer armorer baker banker barber bard barmaid beekeeper beggar blacksmith boatman bookbinder bowyer brewer "
          "bricklayer butcher candlemaker captain carpenter cartographer carver clerk cobbler cook cooper cowherd crier dancer dyer farmer farrier "
          "ferryman fisher fletcher florist forester fortune_teller gardener glassblower goatherd goldsmith gravedigger guard healer herald herbalist "
          "hermit hunter innkeeper jailer jeweler jester judge knight laborer lamplighter librarian locksmith mason mercenary merchant messenger "
          "midwife miller miner monk musician nun oracle painter paladin peddler pilgrim piper pirate poet porter potter priest ranger rope_maker "
          "saddler sage sailor scholar scout scribe scullion servant shepherd shipwright shopkeeper smuggler soldier spinner squire stable_hand "
          "steward stonecutter storyteller tailor tanner tavern_keeper teacher thatcher thief tinker trapper treasurer vintner watchman weaver "
          "wheelwright wizard woodcutter").replace("_", "\0").split()
TRADES = [trade.replace("\0", " ") for trade in TRADES]
HELD_TRADES = ["cheesemonger", "clockmaker", "falconer", "lapidary", "lute maker", "ratcatcher", "sculptor", "swineherd", "tollkeeper", "undertaker"]

MATERIALS = ("amber ancient bent black blessed blue bone brass broken bronze carved clay copper cracked crimson crooked crystal cursed dark dull "
             "dusty dwarven elven emerald enchanted engraved faded fine forged frozen gilded glass glowing golden granite green heavy hollow horn iron "
             "ivory jade large leather lesser light linen little long magic marble moonlit mossy oak obsidian old painted pale pearl pewter plain "
             "polished purple quartz rare red rough round royal ruby rusty sacred sapphire sealed shabby sharp shiny short silk silver simple slim small "
             "smooth spotted steel stone sturdy thick thin tin torn twisted velvet weathered white wicker wide wild wooden wool worn yellow").split()
NOUNS = ("amulet anvil apple apron arrow axe backpack bag banner barrel basket bead bell belt blanket bolt book boot bottle bow bowl box bracelet "
         "bread brooch broom brush bucket buckle cage cake candle cane cap carpet cart cauldron chain chair chalice charm cheese chest chisel cloak "
         "club coat coin comb compass cord crossbow crown crutch cup curtain dagger dice dish doll dress drum duck egg elixir fan feather fiddle fish "
         "flag flask flower flute fork fruit gauntlet gem glove goblet grindstone hammer harp hat hatchet helmet herb hoe honey hood hook horn "
         "horseshoe idol ink jar jewel jug kettle key kite knife ladder ladle lamp lance lantern lens letter lock locket lute mace mallet map mask "
         "medal mirror mug mushroom nail necklace needle net oil onion orb pan parchment pebble pendant pepper phial pickaxe pie pillow pipe pitcher "
         "plate plow pot potion pouch powder puppet purse quill quiver rag rake razor relic ribbon ring robe rod rope rug sack saddle salt salve "
         "sandal saw scarf scepter scroll scythe seal seed shawl shears shield shirt shoe shovel sickle skull sling soap spear spice spindle spoon "
         "staff statue stew stool stove string sword table tankard tapestry teapot tent tonic tooth torch toy trap tray trinket trumpet tunic turnip "
         "urn vase veil vest vial vine violin wand watch wheel whip whistle wig wine wreath yarn").split()
HELD_NOUNS = ("almanac astrolabe bandolier bellows birdcage brazier cleaver cowbell diadem dulcimer earring figurine garland gavel halberd hourglass "
              "inkwell javelin kaleidoscope lodestone monocle nutcracker ocarina parasol pitchfork rapier rosary sextant snuffbox spyglass sundial "
              "tambourine thimble tiara tongs trident umbrella weathervane whetstone zither").split()

MOODS = ("cheerful", "calm", "kind", "shy", "weary", "gloomy", "grumpy", "wary", "proud", "angry")
FRIENDLY = frozenset(MOODS[:4])

# What somebody is to a character, and how that one is called.
RELATIONS = {"sister": "she", "mother": "she", "wife": "she", "daughter": "she", "aunt": "she", "niece": "she", "grandmother": "she",
             "brother": "he", "father": "he", "husband": "he", "son": "he", "uncle": "he", "nephew": "he", "grandfather": "he",
             "friend": "they", "rival": "they", "master": "they", "apprentice": "they", "cousin": "they", "neighbor": "they", "partner": "they",
             "enemy": "they", "debtor": "they", "teacher": "they"}

# What nobody of this world can know.
TOPICS = ("airplanes, algebra, atoms, baseball, bicycles, black holes, cars, cheap flights, chess engines, chocolate bars, climate models, comets, "
          "computers, cricket, dinosaurs, electricity, elevators, email, football, galaxies, genes, gravity, helicopters, hockey, insurance, jazz, "
          "kangaroos, lasers, light bulbs, machine learning, magnets, microscopes, motorcycles, movies, neural networks, newspapers, nuclear power, "
          "penguins, telephones, photography, physics, pianos, pizza, plastic, politics, pop music, programming, quantum mechanics, radio, railways, "
          "refrigerators, robots, rockets, satellites, skateboards, soccer, software, space travel, steam engines, submarines, subways, sushi, tanks, "
          "taxes, taxis, television, tennis, the internet, the moon landing, the stock market, traffic lights, trains, tractors, vaccines, "
          "video games, viruses, volcanoes, websites, the president, the weather in April, the end of the world").split(", ")


# What somebody may be asked to do, which is no action.
DEEDS = ("dance, sing, fly, swim, sleep, cook a meal, read, write a letter, fight, fish, hunt, run away, ride a horse, climb the wall, open the door, close the window, "
         "light a fire, lie, steal, pray, play a tune, count the stars, catch a rabbit, tell the truth, keep a secret, count to ten, drink, eat, draw, paint, "
         "heal a wound, build a house, guard the gate, cut my hair, carry my bag, come back, cross the river, disappear, fall, help my brother, go home, jump").split(", ")


def is_held(word):
    return zlib.crc32(word.lower().encode()) % 8 == 0


def _syllable(draw):
    if draw() < 0.5:  # a plain one
        return PLAIN[0][int(draw() * 21)] + PLAIN[1][int(draw() * 8)] + PLAIN[2][int(draw() * 11)]
    return ONSETS[int(draw() * len(ONSETS))] + VOWELS[int(draw() * len(VOWELS))] + CODAS[int(draw() * len(CODAS))]


def invented(draw, held):
    """A word of lower case that is held out, or is not."""
    while True:
        kind = draw()
        word = _syllable(draw)
        if kind < 0.35:
            word += ENDINGS[int(draw() * len(ENDINGS))]
        elif kind < 0.8:
            word += _syllable(draw)
        elif kind < 0.95:
            word += _syllable(draw) + ENDINGS[int(draw() * len(ENDINGS))]
        if kind > 0.97:
            at = int(draw() * len(word))
            word = word[:at] + RARE[int(draw() * len(RARE))] + word[at:]
        if 3 <= len(word) <= 11 and is_held(word) == held:
            return word


def first_name(draw, held):
    return invented(draw, held).capitalize()


def surname(draw, held):
    if draw() < 0.5:
        return invented(draw, held).capitalize()
    while True:
        word = PLACE_FIRST[int(draw() * len(PLACE_FIRST))] + SURNAME_LAST[int(draw() * len(SURNAME_LAST))]
        if is_held(word) == held:
            return word


def place(draw, held):
    kind = draw()
    if kind < 0.4:
        return invented(draw, held).capitalize()
    if kind < 0.6:
        return invented(draw, held).capitalize() + " " + PLACE_LAST[int(draw() * len(PLACE_LAST))]
    while True:
        first, last = PLACE_FIRST[int(draw() * len(PLACE_FIRST))], PLACE_LAST[int(draw() * len(PLACE_LAST))]
        word = first + last.lower() if kind < 0.8 else first + " " + last
        if is_held(word) == held:
            return word


def item(draw, held):
    kind = draw()
    nouns = HELD_NOUNS if held else NOUNS
    noun = nouns[int(draw() * len(nouns))]
    if kind < 0.15:
        return noun
    if kind < 0.5:
        return MATERIALS[int(draw() * len(MATERIALS))] + " " + noun
    if kind < 0.8:
        return invented(draw, held) + " " + NOUNS[int(draw() * len(NOUNS))]
    if kind < 0.9:
        return MATERIALS[int(draw() * len(MATERIALS))] + " " + invented(draw, held)
    return invented(draw, held)


def price(draw):
    return int(2 * 450 ** draw())


def topic(draw, held):
    kind = draw()
    if kind < 0.6 and not held:
        return TOPICS[int(draw() * len(TOPICS))]
    if kind < 0.8:
        return invented(draw, held).capitalize()
    return invented(draw, held) + " " + ("magic stones beasts wars kings law trees moons songs bread".split())[int(draw() * 10)]
