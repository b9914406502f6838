"""MATH: what a completion earns, which answers are equivalent, hostile texts, files of problems."""

import json
import random
import re
import tracemalloc

import pytest
from labelled import needs_data, real
from tables import columns, lines
from work import light

from tasks.math_rewards import (
    equivalent,
    final_answer,
    last_boxed,
    load_problems,
    reward,
    same_answer,
    subgroups,
    to_problem,
)

PROBLEM = {"problem": "What is $1/4 + 1/4$?", "answer": "\\frac{1}{2}"}


def box(answer):
    return f"A half: $\\boxed{{{answer}}}$."


# What a completion earns

WORDS = [("«", "Two quarters make a half. The final answer is $\\boxed{"), ("»", "}$.")]
# completion | total | a part of the reason. «2» is a completion whose box holds 2.
ROWS = r"""
«\frac{1}{2}» | 2 | correct
«0.5» | 2 | correct
«\sqrt{1/4}» | 2 | correct
«2» | 1 | '2' is not '\\frac{1}{2}'
«\sqrt{2}» | 1 | is not '\\frac{1}{2}'
«\frac{1}{2} x 3» | 1 | not read in full
«⟨501×0⟩» | 1 | longer than 500 characters
\boxed{} | 0.5 | empty or never closed
\boxed{ ⏎ } | 0.5 | empty or never closed
\boxed{1\} | 0.5 | empty or never closed
\boxed{ | 0.5 | empty or never closed
EMPTY | 0 | no \boxed{...}
so \boxed {0.5} | 2 | correct
so \boxed{2} or \boxed⏎{\frac12} | 2 | correct
so \boxed{0.5} or \boxed  {2} | 1 | '2' is not
so \boxed { | 0.5 | empty or never closed
0.5 | 0 | no \boxed{...}
\boxed | 0 | no \boxed{...}
\fbox{0.5} | 0 | no \boxed{...}
«0.5»⏎ | 2 | correct
«0.5» I hope it is correct.<|im_end|> | 2 | correct
«0.5»«2» | 1 | '2' is not
«2»«0.5» | 2 | correct
«0.5»\boxed{ | 0.5 | empty or never closed
# The box ends at its own brace.
\boxed{ \frac{1}{\sqrt{2}} }. | 1 | '\\frac{1}{\\sqrt{2}}' is not
\boxed{\{1, 2\}} | 1 | '\\{1, 2\\}' is not
\boxed{\left\{ x \right.} | 1 | '\\left\\{ x \\right.' or
\boxed{1 \\{2}} | 1 | '1 \\\\{2}'
\boxed{x = \boxed{5}} | 1 | '5' is not
\boxed{5 | 0.5 | empty or never closed
"""


@pytest.mark.parametrize("line", lines(ROWS))
def test_what_a_completion_earns_and_why(line):
    text, earned, why = columns(line, WORDS)
    total = float(earned)
    result = reward(text, PROBLEM)
    assert result[:3] == (total, min(total, 1.0), float(total == 2.0)) and why in result.why


# Which answers are equivalent

# gold | right answers, or EMPTY | wrong answers, if any; two spaces stand between answers
TABLE = r"""
\frac{1}{2} | 1/2  \dfrac12  \frac1{2}  \frac{2}{4}  0.50  .5
\frac{1}{2} | \tfrac12
-\frac{1}{2} | \frac{-1}{2}  -0.5  −1/2
2\frac{1}{2} | 2.5  \frac{5}{2}  2 \frac12
43500 | 43,500  43{,}500  43\,500  43,\!500  $43500$  43500.
43500 | \$43,500
111, \! 111, \! 111 | 111111111  111,111,111
5 | 5\text{ cm}  5 cm  5 apples  x = 5  x=\ 5  5 = x  5\text{ cm}^2
5 | 2+3=5
5\text{ cm}^2 | 5  5 square centimeters  5\mathrm{cm}^2
90^\circ | 90  90^{\circ}  90°  90\text{ degrees}
10 | 10\%  \binom52  \binom{5}{2}  2(5)  (2)(5)  2\cdot 5
5.3\% | 5.3  0.053  5.3 percent  5.30\%
2516_8 | 2516  2516_{8}  (2516)_8
1e-5 | 10^{-5}  0.00001  1\times 10^{-5}
\frac{1}{3} | 0.333333  \frac{3}{9}
\pi | 3.14159265  \frac{2\pi}{2}
\frac12c | \frac{c}{2}  c/2  0.5c
1-\mathrm{e} | 1-e  -(e-1)
\sqrt{8} | 2\sqrt{2}  2\sqrt2  \sqrt[3]{8}\sqrt{2}
\frac{1}{\sqrt{3}} | \frac{\sqrt{3}}{3}
x^2 + 2x + 1 | (x+1)^2  (1+x)(x+1)  y=(x+1)^2  f(x) = (x+1)^2
F_{n-k-1} F_k+a | a+F_kF_{n-k-1}
24 | \Gamma(5)
\frac{2}{3} | 2:3
5:30 | 5:30  05:30  5 : 30
2i | \sqrt{-4}  (1+i)^2
\frac{1}{2004!} | \frac{1}{2003! \cdot 2004}
\left( 3, \frac{\pi}{2} \right) | ( 3 , \pi / 2 )  (3,0.5\pi)
1, 2 | 2, 1  \{1,2\}  2 \text{ and } 1  1 or 2  x=1 \text{ or } x=2
100, 200 | 200, 100
2000, 1000 | 1,000, 2,000
4,\ 9 | 9,\,4  9,~4  4,\quad 9
(100, 200) | (100,200)  (100,\ 200)  100, 200
1\pm\sqrt2 | 1+\sqrt 2, 1-\sqrt 2  1-\sqrt{2},\ 1+\sqrt{2}
E_{1},E_{2} | E_1, E_2
[1,2) | x\in[1,2)  1\le x<2  2>x\ge 1  [1,2.0)
(-\infty,1)\cup(2,\infty) | (2,\infty)\cup(-\infty,1)
x>3 | 3<x  2x>6  (3,\infty)
y = 3x+5 | 3x+5  3x-y=-5  y-5=3x
\text{Evelyn} | Evelyn  \textbf{evelyn}  \mbox{Evelyn}
\text{B} | (B)  B  b  \text{(B)}
\text{odd} | odd
p=5,q=2;p=7,q=2 | (5,2),(7,2)
x=5,y=6 | y=6, x=5  5,6  (5,6)
x=5,y=6 | EMPTY | x=6,y=5  6,5  (6,5)  x=5  x=5,y=6,z=7
x=5,x=6 | 6,5  x=6 \text{ or } x=5
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix} 1 \\ ⏎ 2 \end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} | \left[\begin{array}{c}1\\2\end{array}\right]
\begin{pmatrix}1\\2\end{pmatrix} | \frac12\begin{bmatrix}2\\4\end{bmatrix}
250 | 250.⟨496×0⟩
# What stands side by side is never a sum.
148 | EMPTY | 145 3  145 \quad 3  140\ 8
6 | EMPTY | 1 2 3  6(-1)^{n}, n\geq0, n\in\mathbb{Z}  (1)(2)(3)+1  3(3)  4(2)
12 | EMPTY | 1 2  1\,2
1 2 | EMPTY | 12  3
# A part that is not read, or that says something else, is not dropped.
2 | EMPTY | 2k, k \in Z  2\ldots  2'  2 \to 3  2x=4  2, 3  2_3+0
5 | EMPTY | -5  \neq 5  \geq 5  5 \text{ million}  5 million  5k
5 | EMPTY | 5\text{ or }6
5 | EMPTY | \text{I think } 5  5,\ 6,\ 7  \frac{1}{0}  \frac{  $  5t
5 | EMPTY | f(5)  5!
4t | EMPTY | 4  4c  4s  4T
1-\mathrm{e} | EMPTY | 1  1-\mathrm{f}
1-\frac1{\mathrm e} | EMPTY | 1+\frac1{\mathrm e}  1
5\text{ cm}^2 | EMPTY | 5\text{ cm}^3  5\text{ m}^2  5\text{ cm}
5\text{ cm}^2 | EMPTY | 5\text{ cm}^2\text{ or more}  5\text{ million cm}^2
A | EMPTY | A^T  A'  a
1e-5 | EMPTY | e-5  1e-6
2516_8 | EMPTY | 2516_9  2517_8
2519 | EMPTY | 2519_8
# Numbers are compared exactly, or relative to their size.
\frac{1}{2004!} | EMPTY | \frac{1}{3004!}  0
2^{-99} | EMPTY | 2^{-98}  0
0.0000002 | EMPTY | 0.0000001  0
10^{60} | EMPTY | 10^{60}+1  10^{61}
\frac{1}{3} | EMPTY | 0.333  0.3333  0.333334
\pi | EMPTY | 3.14  3.1416  \frac{22}{7}
0 | EMPTY | \frac{0}{0}  10^{-40}
# Order, brackets and signs count.
1234 | EMPTY | 12,34
32349 | EMPTY | 32, 349  32 ,349
100, 200 | EMPTY | 100200  100,\,200,  (200,100)
100200 | EMPTY | 100,\,200
23 | EMPTY | 2\,3
1,000, 2,000 | EMPTY | 0, 1, 2
4,\ 9 | EMPTY | 4
3 | EMPTY | 3 or 4  3,4  1+\sqrt 2,\ 1-\sqrt 2  \{3,3\}
1,2,3 | EMPTY | 1,2  1,2,2
(2,1) | EMPTY | (1,2)  [2,1]  \{2,1\}  (2,1
[0,1] | 0\le x\le 1 | [0,1)  (0,1]  0,1  \{0,1\}  0\le x<1
(-\infty,2] | x\le 2 | x<2  x\ge 2
1,2 | EMPTY | 1,,2  1,2,  ,1,2
x < 1 | EMPTY | x > 1  x \le 1  -x<-1  x<2
y = 3 | EMPTY | x = 3  y=4  y=3, x=3
y^2 | EMPTY | x^2  Y^2  y^3
|x| | EMPTY | x  -x
\gamma | EMPTY | \Gamma  0.577215665  \mathrm{\Gamma}
\frac{1}{6} | EMPTY | 5:30  1:2:3
5:30 | EMPTY | 6:30  11:66  1:6
\text{even} | EMPTY | \text{odd}  even number
No | EMPTY | Yes  on
# Braces that only group print nothing.
40 | EMPTY | 4{10}  {4}{10}  \frac{4{10}}{1}  4\{10\}
72 | EMPTY | 6{12}  6{{12}}  {6}12  \sqrt{6{12}^2}
1 | 3{-2}  {2}{-1}  {1}
2.5 | 2{\frac{1}{2}}  {2}\frac12  2\frac{1}2
-6 | EMPTY | 3{-2}
4x^2 | 4{x}^2  {4}x^{2}  4 {x^2}
# Two formulas in dollars are not one.
2 | EMPTY | $x=1$ or $x=2$  $a = 14$ or $a = 2$  $x=1$, $x=2$  \(1\) or \(2\)
4 | EMPTY | $x=-\frac{8}{3}$ or $x=4$  $4$or$5$
$48$, $384$ | EMPTY | 48384  48,384  384
$48$, $384$ | 48, 384  384, 48  $384$ and $48$  \{48,384\}
34 | EMPTY | $3$ $4$  $3$$4$  \(3\) \(4\)
x-1 | EMPTY | $x$ $-1$
# Indices.
2^{k} | EMPTY | 2^{k}_3  2^k_{3}  {2^k}_3  2^{k}{}_3  2_3^k
2^{1009} | EMPTY | 2^{1009}_3  (2^{1009})_3
x_1^2 | x^2_1  x^{2}_{1}  x_1x_1
x^2 | EMPTY | x^2_1  (x)^2_1
5! | EMPTY | 5!_3  \frac{120}{1}_3  \sqrt{14400}_3
\log 8 | EMPTY | \log_2 8  \ln 8  3
# Equations of constants, false chains, names.
3=4 | EMPTY | 1=2  4=5  x=x+1
1<2 | EMPTY | 3<4  0<1
3 \ne 4 | EMPTY | 1 \ne 2
\$\dfrac23 \approx \$0.67 | EMPTY | \$\dfrac26 \approx \$0.67  0.67
\$\dfrac23 \approx \$0.67 | \frac23  2/3 \approx 0.667
11 | EMPTY | x = 5+5+1 = 7 = 11  5=11  11=5
18 | f(2)=18  18 = f(2)  f(\frac12)=18  P(-1) = 18  f(2)=3\cdot 6=18
f(2)=18 | EMPTY | 9  f(3)=18  f(1)=9  2f=18  g(2)=18
mc^2 | E = mc^2  E=m c^{2}  E_1 = mc^2  E(m) = mc^2
E | EMPTY | e  2.718281828  E+E
5 | EMPTY | x /= 5  x \not= 5  \text{not } x = 5  x = 2x = 5  \neg x = 5
C=\frac{def}{de+df+ef} | \frac{d \cdot e \cdot f}{ef + df + de}
I\frac{d\omega}{dt}+2B\omega=T | I \frac{d\omega}{dt} = T - 2B\omega
m\frac{dv}{dt}+bv=f | m \cdot \frac{dv}{dt} + bv = f
I(0)e^{-\frac{t}{RC}} | I(0) e^{-\frac{1}{RC} t}
I(0)e^{t} | EMPTY | I(0)e^{2t}  I(1)e^t  0
\begin{pmatrix}1\\2\end{pmatrix} | \text{proj}_{\mathbf{b}} \mathbf{a} = \begin{pmatrix}1\\2\end{pmatrix}
# Sets of numbers.
x \neq 1 | (-\infty, 1) \cup (1, \infty)  1 \ne x  \mathbb{R}\setminus\{1\}
x \neq 1 | EMPTY | x \ne 2  y \ne 1  1  x=1  (-\infty,1)\cup(2,\infty)
(2,5) | EMPTY | [2,5)  5 > x \ge 2  (5,2)  2 < x < 6  2<x<y
x<5 | EMPTY | x<5\%  x \le 5  x<0.05  x<500\%
(-\infty,5) | EMPTY | x<5\%  x > 5
x=5 | EMPTY | x=5\%  x=-5  x=5\text{ million}
1+\sqrt2, -1-\sqrt2 | EMPTY | \pm 1 \pm \sqrt 2
\emptyset | EMPTY | 0  \{0\}
# Words that change a number, units, times of day.
5 | EMPTY | 5 \text{ or more}  5 or more  5 \text{ is wrong}  5\text{ at most}
5 | EMPTY | 5 \text{ and up}  5\text{ dozens}  5 \text{ sevenths}  5\text{ M}
5 | EMPTY | not 5  5 \text{?}  \text{less than }5  \text{5 or 6}  2abcd
106^\circ | EMPTY | 106^\circ million  106^\circ\text{ or more}  -106^\circ  10^\circ 6
5 | 5\text{ m}  5 kg  5\text{ feet}  5cm  5\,\mathrm{m}  5~\mathrm{kg}  \$5 per hour
5\text{ m} | 5  5 meters  x = 5\text{ m}
5\text{ m} | EMPTY | 5\text{ cm}  5\text{ m}^2  5m  5\text{ million}  5\text{ ft}
x=5\text{ cm} | EMPTY | x=5\text{ m}  5\text{ m}  x=6\text{ cm}
5\text{ L} | 5  5 liters  5\mathrm{L}
5\text{ L} | EMPTY | 5\text{ mL}  5\text{ lb}  5 gallons
60\text{ m/s} | 60 \text{ meters per second}  60\text{ m}\text{/s}
60\text{ m/s} | EMPTY | 60\text{ ms}  60\text{ m/s}^2  60\text{ km/s}  60\text{ m/h}
\$5 | 5  5\text{ dollars}  \$5.00  x = \$5
\$5 | EMPTY | 5\text{ cents}  \$5\text{ million}  \$5 million
2000 | \text{2000 calories}  \text{2,000 calories}  \text{2000}
200 | EMPTY | \text{2000 calories}  \text{200 or 300}  201_3
1:58 am | 1:58 \text{ a.m.}  1:58 AM  01:58 a.m.  1:58\text{ am}  1:58
1:58 am | EMPTY | 1:58 \text{ p.m.}  2:58 am  1/58
2:01\text{ pm} | EMPTY | 4:02\text{ pm}
25^\circ C | EMPTY | 25^\circ F
28\% | EMPTY | 28\%\%  28\%^2  28\% million  2.8
# Products, powers, mixed numbers, functions.
480 | \dfrac{6!-5!2!}{6!}\cdot 6!  2\cdot 240  4 * 120
2^6 3^5 5^4 | 2^6 * 3^5 * 5^4  2^{6}3^{5}5^{4}  2^6 \times 3^5\cdot 5^4
192 | EMPTY | 2^63  2{63}  \frac123
18 | 9+-1+10  9--9  2*9
\frac{388}{3} | 4\cdot 32\frac{1}{3}  32\frac13\cdot 4
3.5 | EMPTY | 2\frac{3}{2}  3.0\frac12  2 3/2
\frac{x}{2} | EMPTY | 1/2x  2/x
\frac{1}{2x} | EMPTY | 1/2x
30000000 | (30,\!000,\!000)  30{,}000{,}000
0.15 | EMPTY | 0.15{,}000  0.15,\!000  0.15\,000
2^{4950} | 4^{2475}  2^{4949}\cdot 2
2^{4950} | EMPTY | 2^{4950}+1  2^{4951}  2^{4950}\pi
10^{400}\pi | EMPTY | (10^{400}+1)\pi  10^{400}\pi+1
\frac{1}{2} | \sin 30^\circ  \cos{60^\circ}  \sin\frac{\pi}{6}
\sin 30 | EMPTY | \sin 30^\circ  \sin(30^\circ)
\sin(x+30) | EMPTY | \sin(x+30^\circ)
\frac{\sin x}{2} | EMPTY | \sin x/2  \sin \frac x2
\arcsin x | \sin^{-1} x  \sin^{-1}(x)
120 | EMPTY | 5!!  -5!
\frac{n(n-1)}{2} | \binom{n}{2}  \frac{n!}{2(n-2)!}
xy | EMPTY | |xy|  \sqrt{x^2y^2}  x+y
# Floors and ceilings, matrices.
3 | \lfloor 7/2 \rfloor  \lceil 2.1 \rceil  \lfloor\sqrt{10}\rfloor
4 | \lfloor \sqrt{16} \rfloor  \lceil\sqrt{16}\rceil  -\lfloor -3.5 \rfloor
\lfloor\frac{2n-1}{5}\rfloor | EMPTY | \lfloor\frac{2n-1}{8}\rfloor  \lceil\frac{2n-1}{5}\rceil  \frac{2n-1}{5}
\lfloor\frac{2n-1}{8}\rfloor | \left\lfloor n/4 - 1/8 \right\rfloor
\lceil n/2 \rceil+1 | EMPTY | \lceil n/9 \rceil+1  \lceil n/2 \rceil
\lceil n/2 \rceil+1 | \lceil \frac{n+2}{2} \rceil
\lfloor n/1000 \rfloor | EMPTY | \lfloor n/1001 \rfloor  \lfloor (n+1)/1000 \rfloor
\begin{pmatrix}-1&0\\0&-1\end{pmatrix} | -\begin{pmatrix}1&0\\0&1\end{pmatrix}  -\frac12\cdot\begin{bmatrix}2&0\\0&2\end{bmatrix}
\begin{pmatrix}1\\2\end{pmatrix} | EMPTY | \begin{pmatrix}1&2\end{pmatrix}  \begin{pmatrix}1\\2\end{pmatrix}^2  2\begin{pmatrix}1\\2\end{pmatrix}  \begin{pmatrix}1\\2\end{pmatrix}^T
# Words beside equal numbers agree if both sides have them.
5\text{ km east} | 5  5\text{ km}  5 km due east | 5\text{ km north}  5\text{ km west}
5\text{ km east} | 5\text{ km east} | 5\text{ km north east}
3\text{ even numbers} | 3 | 3\text{ odd numbers}  3\text{ even}
12\text{ noon} | 12  12\text{ pm} | 12\text{ midnight}  12\text{ am}  12 in the morning
30^\circ\text{ north} | 30°  30^\circ | 30^\circ\text{ south}
8\text{ in the evening} | 8\text{ pm}  8 pm | 8\text{ am}  8\text{ in the morning}
10\%\text{ decrease} | 10\% decrease  10\%  10 | 10\%\text{ increase}  10\% increase
7\text{ girls} | 7  7\text{ girl}  \text{7 girls} | 7\text{ boys}  7 boys  7\text{ cm}
60\text{ mph} | 60\text{ miles per hour}  60 mph  60\text{ mi/h}  60 | 60\text{ kph}  60\text{ km/h}
2\text{ yrs} | 2\text{ years}  2\text{ yr.} | 2\text{ hrs}  2\text{ months}
6\text{ different ways} | 6\text{ ways}  6 | 6\text{ books}
2, 3\text{ girls} | 2, 3  3, 2 girls | 2, 3\text{ boys}
# Words that change the number.
5 | 5\text{ apples} | 5\text{ pi}  5 pi  5\text{ undefined}
5 | 5 units | 5\text{ gross}  5\text{ per mille}
5 | 5\text{ in total} | 5\text{ x}  5\text{ i}  5\text{ B}  5\text{ theta}
5 | 5\text{ in total} | 5\text{ quintillion}  5 ‰  5\text{ score}
5 | 5\text{ per day} | 5\text{ quarters}  5\text{ invalid}  5\text{ infinite}
5 | 5\text{ per day} | 5\text{ apples}^2  5\text{ none}
0.3 | .3  0.30 | 0.3\text{ repeating}  0.3\text{ recurring}  0.3...  0.3…  0.3\ldots  0.\overline{3}
# Relations that only look like a value.
5 | 5\approx 5.0  5 \approx 5 | 5 \sim 8  5\sim 5  5\approx 8  5 \approx 6  5 ≈ 5.2  5 ∼ 5
101 | x = 101 \approx 101.0 | 101\approx 8  101 \approx 8x  101\approx x
\frac13 | \frac13\approx 0.33  x=\frac13 \approx 0.333 | \frac13 \approx 1.3  \frac13 \approx 3
\pi | \pi \approx 3.14  \pi ≈ 3.1416 | \pi \approx 4  \pi\approx 3.2
# Letters in another order are another text, but products may be turned.
HHTT | H H T T  \text{HHTT} | HTHT  TTHH  \text{HTHT}
ABCD | \text{ABCD} | DCBA  ABDC
NaCl | \mathrm{NaCl} | ClNa  CNal  aNlC
CO_2 | C O_2  CO_{2} | O_2C  C_2O
A-C-B | A-C-B | A-B-C
hhtt | hhtt | htht
xy | yx  x\cdot y | x+y
nRT | nTR  Rn\cdot T | nRt
IR | R\cdot I  I R | RI
# Characters for commands.
10-2\sqrt5 | 10 - 2√5  10−2√5  10 - 2√(5) | 10 - 2√6  102√5
3 | √9  √(10-1)  ∛27  ∜81  ⌊3.5⌋  ３  𝟑 | ③  ³  ⑶  ⒊  3²  3₄+0  √3
\frac12 | ½  1⁄2  1∕2  4÷8  2⁻¹  −½+1 | 1½2  ½²  ②⁄④
\frac52 | 2½  2 ½ | 2²½  2·½
\arctan 2 | \tan⁻¹ 2  \tan^{−1}2 | \tan² 2
x^{12}+1 | x¹²+1  1+x¹⁰x² | x^1²+1  x¹+1²  x₁₂+1
x_{1}^{2} | x₁²  x²₁ | x₁₂  x¹²
2\sqrt{3x} | 2√(3x)  2 √(3 x) | 2√3x  2√3·x
\sqrt{2}\pi | √2·π  π√2 | √2π  √2 \pi  √(2π)
3\pm\sqrt2 | 3 ± √2  3−√2, 3+√2 | 3 + √2  3 ± 2
(-\infty,1)\cup(1,\infty) | (−∞,1)∪(1,∞)  ℝ∖{1} | (−∞,1)∩(1,∞)  ℕ∖{1}
2\theta\le\pi | 2θ ≤ π  2θ⩽𝜋  π ≥ 2ϑ | 2θ ≥ π  2φ ≤ π
\lambda+\Omega | λ+Ω  Ω + 𝜆 | λ+ω
90^\circ | 90°  90º  90˚  90^∘ | 90′
5\text{ cm}^2 | 5 cm²  5\text{ cm²}  5\text{ cm}² | 5 cm³  5\text{ cm}
# Repeating decimals.
\frac13 | 0.\overline{3}  0.\bar{3}  0.\bar3  0.\dot{3}  0.333...  0.33... | 0.\overline{4}  0.3…
\frac13 | 0.333…  .333\ldots  0.3̅  0.(3) | 0.\overline{3}5
\frac{7}{66} | 0.1\overline{06}  0.10606... | 0.\overline{106}  0.1\bar{0}6
\frac{7}{66} | 0.1\dot{0}\dot{6} | 0.1̅06̅
33\frac13\% | 33.\overline{3}\%  33.333...\%  \frac13 | 33.\overline{3}\overline{3}  33\%
\frac{\pi}{3} | 0.\overline{3}\pi  0.\bar3\cdot\pi | 0.\overline{3}
\frac17 | 0.\overline{142857}  0.\dot{1}4285\dot{7}  0.142857142857... | 0.\overline{142856}
\frac{37}{3} | 12.\overline{3}  12.333... | 12.\overline{33}3  1 2.\overline{3}
\frac{37}{3} | 12\frac13  -(-12.\bar3) | 9.\overline{9}
1 | 0.999…  .\overline{9}  3\cdot 0.\bar3 | 0.\overline{99}8  0.9...  0.999...9
0 | 0.\overline{0} | 0.(3)  1.(0)
# Spellings of a page or a keyboard.
\frac32 | 1 1/2  1 2/4  x = 1 1/2 | 11/2  1 3/2  1, 1/2  1 1/2x
-\frac{7}{2} | -3 1/2 | 3 1/2
\frac32\text{ cups} | 1 1/2 cups  1.5 | 1 1/2 liters
\frac12 | √¼  \sqrt{¼}  √\frac{1}{4} | √½  √¼x
3\pm\sqrt2 | 3∓√2  3\mp\sqrt2  3+√2, 3-√2 | 3∓√3  3-√2  3\mp 1\mp√2
\sin^2\theta | sin²θ  sin^2θ  sin²(θ) | sin θ²  cos²θ  sin θ
\ln 2 | ln 2  ln(2) | log 2  2ln
\sin x | sin x  sinx  sin(x) | sinh x  sin 2x  sine x
\cos x+\tan y | cos x + tan y  tany+cosx | cosh x+tan y
V=IR | V=RI  V = R I | V=II  R=VI  V=R
V=IRT | EMPTY | V=TRI
X=HT | EMPTY | X=TH
5\text{ sec} | 5 sec  5 | sec 5
# Real numbers without several points.
(-\infty,1)\cup(1,2)\cup(2,\infty) | \mathbb R\setminus\{1,2\} | \mathbb R\setminus\{1,3\}
(-\infty,1)\cup(1,2)\cup(2,\infty) | \mathbb{R}\setminus\{2, 1\} | \mathbb R\setminus\{1,2,3\}
(-\infty,1)\cup(1,2)\cup(2,\infty) | \mathbb{R} - \{1,2\} | \mathbb R\setminus\{1\}
x \ne 1, 2 | \mathbb R\backslash\{1,2\}  x \neq 2,\ x \neq 1 | x\ne 1, y\ne 2  x = 1, 2
x \ne 1, 2 | x \ne 1 \text{ and } x\ne 2  ℝ∖{1,2} | y \ne 1, 2
x\ne -2, 0, \frac12 | \mathbb{R}\setminus\{\frac12,-2,0\} | \mathbb{R}\setminus\{-2,0\}
x\ne -2, 0, \frac12 | x\ne 0, x\ne -2, x\ne .5 | \mathbb{Z}\setminus\{-2,0,\frac12\}
x \ne \pm 1 | \mathbb{R}\setminus\{-1, 1\}  x\ne 1,-1 | \mathbb{R}\setminus\{1\}
x \ne a, 1 | EMPTY | \mathbb R\setminus\{1,a\}
x \ne a | \mathbb R\setminus\{a\} | \mathbb R\setminus\{b\}  \mathbb R\setminus\{a,b\}
# The base.
10001_2 | 10001_{(2)}  10001_{2}  10001_(2) | 10001_{(3)}  10001_{(2}
10001_2 | 10001₂  (10001)_{(2)} | 10002_{(2)}
2\pi | 2*pi  2 pi | 2p
\pi+1 | pi + 1  1+π | pie+1
"""  # noqa: E501


@pytest.mark.parametrize("line", lines(TABLE))
def test_which_answers_are_equivalent_whichever_of_the_two_is_the_gold(line):
    gold, right, *wrong = columns(line)
    expected = dict.fromkeys(right.split("  "), {True})
    expected |= dict.fromkeys("  ".join(wrong).split("  "), {False})
    expected.pop("", None)
    verdicts = {}
    for answer in expected:
        verdicts[answer] = {equivalent(answer, gold)[0], equivalent(gold, answer)[0]}
    assert verdicts == expected != {}


AROUND = columns(r"""
-G | 2G | \geq G | \neq G | <G | \text{about }G | \approx 1, G | f(G | {1}0G | G' | G!! | G_{99} |
G\text{ million} | G or more | G+1 | Gx | G{10} | G, 7 | G\ldots | G G
""")
OTHER = {
    "-": "+", "+": "-", "(": ["[", ""], ")": ["]", ""], "[": ["(", ""], "]": [")", ""], "^": [""],
    **{digit: "0123456789".replace(digit, "") for digit in "0123456789"},
}  # fmt: skip


def mutants(gold):
    """The answer with one sign, digit, exponent, letter or bracket changed, or a part too many."""
    yield from [text.replace("G", gold) for text in AROUND]
    for i, character in enumerate(gold):
        word = re.search(r"\\[a-zA-Z]*$|\\(?:text|mbox|begin|end|mathrm)\{[^}]*$", gold[:i])
        for new in [] if word else OTHER.get(character, [character.swapcase(), f"{character}q"]):
            yield gold[:i] + new + gold[i + 1 :]


@needs_data
def test_no_real_answer_is_paid_after_one_sign_digit_letter_bracket_or_part_is_changed():
    golds = sorted({row["answer"] for row in real("math500")})
    cases = [(text, gold) for gold in golds for text in mutants(gold)]
    paid = {(text, gold) for text, gold in cases if equivalent(text, gold)[0]}
    assert len(cases) > 10_000 and paid - {(gold, gold) for gold in golds} == {("-0", "0")}


@needs_data
def test_the_verdict_agrees_with_all_but_eleven_labelled_pairs_and_pays_no_wrong_one():
    def content(text):
        return last_boxed(text) or [text, *re.findall(r"\$+([^$]+)\$+", text)][-1]

    rows = real("math_equivalence")
    pairs = [(content(row["pred"]), content(row["gold"]), row["equivalent"]) for row in rows]
    assert [right for *pair, right in pairs if equivalent(*pair)[0] != right] == [
        True
    ] * 11  # one of them is 1/3 \\approx 1.3


@needs_data
def test_every_reference_solution_earns_two_and_every_gold_answer_is_read():
    rows = real("math500")
    assert [row["answer"] for row in rows if reward(row["solution"], row).total != 2.0] == []
    assert not any("read" in equivalent("\\sqrt{7}", row["answer"])[1] for row in rows)


# Votes and subgroups


def test_equivalent_answers_vote_together_and_what_is_not_read_equals_itself():
    votes = [final_answer(box(text), PROBLEM) for text in ("1/2", " 0.5 ", "3", "9^{9^{9^9}}", "")]
    assert votes == ["1/2", "0.5", "3", "9^{9^{9^9}}", None]
    assert [same_answer(vote, "0.5", PROBLEM) for vote in votes[:4]] == [True, True, False, False]
    assert same_answer(votes[3], votes[3], PROBLEM)


@pytest.mark.parametrize(
    "columns, names",
    [
        ({"level": 5, "subject": "Counting & Probability"}, ["level_5", "counting_probability"]),
        ({"level": "Level 1", "subject": "Geometry"}, ["level_1", "geometry"]),
        ({"level": "Level ?"}, []),
        ({}, []),
    ],
)
def test_subgroups_name_level_and_subject_where_they_are_known(columns, names):
    assert subgroups({**PROBLEM, **columns}) == names


# Hostile texts

TOWERS = columns(r"""
9^{9^{9^9}} | 10^{10^{10}} | ((9!)!)! | 3^{3^{19}} | (10^8)! | \binom{10^9}{10^8} |
(x+y+z+w)^{300} | x^{99999} | 0.1^{99999999} | \pi^{\pi^{\pi^\pi}} | e^{e^{e^{e^e}}} |
\sum_{k=1}^{10^9} k^k | \Gamma(10^9) | \sin(10^{999}) | \exp\exp\exp\exp 9 | \ln 0 |
\lfloor\pi^{400}\rfloor | (1+\sqrt2)^{99999} | \tan\frac{\pi}2 | 3000!^9
""")
NESTED = [
    ("\\sqrt{", "}"), ("(", ")"), ("{", "}"), ("\\frac{1}{1+", "}"), ("|", "|"), ("\\{", "\\}"),
]  # fmt: skip
REPEATED = columns(r"""
\sqrt | - | ! | ^ | _ | x! | \sin | \sin x+ | x^{400}+ | \frac1{3^{999}}+ | x^y+ | 1, | x=1, | 1< |
\pm | \cup | (1,2); | \text{a} | 5 cm | \Gamma(x)+ | \\ | $ | \u0020 | 1\! | 1,000 | \left | ° |
\% | \approx | { | \{ | \boxed{ | \boxed{} | \lceil x | \begin{pmatrix} | \text{or} |
\binom{x}{y}+ | 3^{300} | } | \log_2 x+ | \ln(x+y)+ | √ | √( | ½ | ² | ﷺ | \ue000 | .1 | .1212 |
x \ne 1,\u0020 | HT | \setminus\{1\} | 0.\bar{3} | \boxed {
""")
DEEP = [a + depth * a + "2" + depth * b + b for a, b in NESTED for depth in (30, 60, 5_000)]


def test_hostile_texts_are_wrong_with_little_work_and_memory():
    tracemalloc.start()
    short = [(text, 1) for text in TOWERS + DEEP] + [(text, 480 // len(text)) for text in REPEATED]
    for text, times in short + [(text, 90_000) for text in REPEATED]:
        boxed = light(reward, f"\\boxed{{{text * times}}}", PROBLEM)
        bare = light(reward, text * times, PROBLEM)
        assert boxed.answer == bare.answer == 0 < len(boxed.why) <= 160
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_random_texts_never_raise():
    rng = random.Random(0)
    for _ in range(3_000):
        text = "".join(rng.choices([*REPEATED, *TOWERS, *"+=()[]|&;:0.9xie"], k=rng.randint(1, 12)))
        assert reward(box(text), {"answer": text[::-1]}).why.isprintable()


@pytest.mark.parametrize(
    "item", ["x!y!+{}", "\\sin {}x", "y<{}x", "\\{{{},x\\}}", "\\sqrt{{x+{}}}"]
)
def test_long_lists_that_are_the_same_in_another_order_take_little_work(item):
    items = [item.format(number) for number in range(2, 27)]
    assert light(equivalent, ",".join(items), ",".join(reversed(items)))[0]


# Rows of problems

# a row as JSON | its answer
ANSWERS = r"""
{"answer": 2} | 2
{"answer": 0.5} | 0.5
{"answer": ["2"]} | 2
{"answer": "$\\boxed{2}$."} | 2
{"solution": "so $\\boxed{1}$, no, $\\boxed{\\frac{1}{2}}$"} | \frac{1}{2}
{"solution": "it is \\fbox{7}"} | 7
{"solution": "it is \\boxed 7."} | 7
"""


@pytest.mark.parametrize("line", lines(ANSWERS))
def test_the_answer_is_read_from_a_column_or_from_the_last_box_of_a_solution(line):
    row, answer = columns(line)
    row = json.loads(row)
    problem = to_problem({"problem": "?", "type": "Algebra", "level": "Level 3"} | row)
    expected = {"problem": "?", "answer": answer, "level": "Level 3", "subject": "Algebra"}
    assert problem == expected


# a row as JSON | a part of the message
MISTAKES = r"""
{"question": "?", "answer": "2"} | needs problem, a text
{"problem": " ", "answer": "2"} | needs problem, a text
{"problem": ["?"], "answer": "2"} | needs problem, a text
{"problem": "?", "answer": "2}"} | and balanced braces
{"problem": "?", "answer": "⟨501×2⟩"} | at most 500 characters
{"problem": "?", "solution": "it is 2"} | or solution with \boxed
{"problem": "?", "answer": null} | needs answer
{"problem": "?", "answer": ""} | needs answer
{"problem": "?", "answer": true} | needs answer
{"problem": "?", "answer": ["1", "2"]} | needs answer
{"problem": "?", "answer": "\\frac{1}{2}, \frac{1}{3}"} | a control character
{"problem": "?", "answer": "\text{east}"} | a control character
{"problem": "?", "answer": "\binom{5}{2}"} | a control character
{"problem": "?", "answer": "x \neq 5"} | a control character
{"problem": "?", "answer": "\nu"} | a control character
{"problem": "?", "answer": "2\right)"} | a control character
{"problem": "?", "solution": "it is \\boxed{\frac12}"} | a control character
{"problem": "?", "solution": "it is \\boxed{2\times 3}"} | a control character
{"problem": "What is 2 \times 3?", "answer": "6"} | a control character
{"problem": "What is \frac12?", "answer": "6"} | a control character
"""


@pytest.mark.parametrize("line", lines(MISTAKES))
def test_a_row_that_is_not_clear_is_refused_with_what_is_needed(line):
    row, said = columns(line)
    with pytest.raises(ValueError, match=re.escape(said)):
        to_problem(json.loads(row))


def test_a_matrix_in_several_lines_and_a_table_with_tabs_are_clear():
    matrix = "\\begin{pmatrix}\n1 \\\\\nx\n\\end{pmatrix}"
    row = {"problem": "1\t2\nx\r\ny", "answer": matrix}
    assert to_problem(row) == row


def test_without_a_source_a_sentence_says_what_to_type():
    with pytest.raises(ValueError, match="MATH has no built-in problems: use `--data hub`"):
        load_problems("train", None)
