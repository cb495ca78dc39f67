"""Well-known voices of Azure, each with the built-in voice that is nearest: the same language, and a woman or a man."""

from __future__ import annotations

from packhorse_speech.espeak import LANGUAGES, MEN, WOMEN

NAMES = {  # women, then men, in Azure's order
    "cs-CZ": ("Vlasta", "Antonin"),
    "da-DK": ("Christel", "Jeppe"),
    "de-DE": (
        "Katja Amala Elke Gisela Klarissa Louisa Maja Tanja Seraphina",
        "Conrad Bernd Christoph Kasper Killian Klaus Ralf Florian",
    ),
    "el-GR": ("Athina", "Nestoras"),
    "en-GB": ("Sonia Libby Abbi Bella Hollie Maisie Olivia", "Ryan Alfie Elliot Ethan Noah Oliver Thomas"),
    "en-US": (
        "Jenny Aria Ava Emma Jane Sara Nancy Amber Ana Ashley Cora Elizabeth Michelle Monica",
        "Guy Davis Andrew Brian Jason Tony Brandon Christopher Eric Jacob Roger Steffan",
    ),
    "es-ES": ("Elvira Abril Estrella Irene Laia Lia Triana Vera Ximena", "Alvaro Arnau Dario Elias Nil Saul Teo"),
    "es-MX": (
        "Dalia Beatriz Candela Carlota Larissa Marina Nuria Renata",
        "Jorge Cecilio Gerardo Liberto Luciano Pelayo Yago",
    ),
    "fi-FI": ("Selma Noora", "Harri"),
    "fr-FR": (
        "Denise Brigitte Celeste Coralie Eloise Jacqueline Josephine Vivienne Yvette",
        "Henri Alain Claude Jerome Maurice Yves Remy",
    ),
    "hi-IN": ("Swara", "Madhur"),
    "hu-HU": ("Noemi", "Tamas"),
    "id-ID": ("Gadis", "Ardi"),
    "it-IT": (
        "Elsa Isabella Fabiola Fiamma Imelda Irma Palmira Pierina",
        "Diego Benigno Calimero Cataldo Gianni Giuseppe Lisandro Rinaldo",
    ),
    "ko-KR": ("SunHi JiMin SeoHyeon SoonBok YuJin", "InJoon BongJin GookMin Hyunsu"),
    "nb-NO": ("Pernille Iselin", "Finn"),
    "nl-NL": ("Fenna Colette", "Maarten"),
    "pl-PL": ("Agnieszka Zofia", "Marek"),
    "pt-BR": (
        "Francisca Brenda Elza Giovanna Leila Leticia Manuela Thalita Yara",
        "Antonio Donato Fabio Humberto Julio Nicolau Valerio",
    ),
    "pt-PT": ("Raquel Fernanda", "Duarte"),
    "ro-RO": ("Alina", "Emil"),
    "ru-RU": ("Svetlana Dariya", "Dmitry"),
    "sv-SE": ("Sofie Hillevi", "Mattias"),
    "tr-TR": ("Emel", "Ahmet"),
    "uk-UA": ("Polina", "Ostap"),
    "vi-VN": ("HoaiMy", "NamMinh"),
    "zh-CN": (
        "Xiaoxiao Xiaoyi Xiaochen Xiaohan Xiaomeng Xiaomo Xiaoqiu Xiaorui Xiaoshuang Xiaoxuan Xiaoyan Xiaozhen",
        "Yunxi Yunyang Yunjian Yunfeng Yunhao Yunxia Yunye Yunze",
    ),
    "zh-HK": ("HiuMaan HiuGaai", "WanLung"),
    "zh-TW": ("HsiaoChen HsiaoYu", "YunJhe"),
}  # fmt: skip

NEAREST = {
    f"{language}-{name}Neural": f"{language}+{voices[i % len(voices)]}"
    for language, both in NAMES.items()
    for names, voices in zip(both, (WOMEN, MEN), strict=True)
    for i, name in enumerate(names.split())
    if language in LANGUAGES
}
"""Two voices of one language and sex get different voices, as far as there are enough."""
