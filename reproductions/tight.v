(* The tight constants of SPAM, checked by Coq: coqc reproductions/tight.v

   The numbers d, e, c are one coordinate of the step, of the error of g and of the change of the client's deviation,
   in units of the step size; docs/tight.md explains the rest. The sum of the inequality over the coordinates is
   Theorem T.4. Nothing is assumed but what stands before the arrows. *)

Require Import Reals Lra Psatz.
Open Scope R_scope.

Definition drop r d e c := d^2 / 2 + e * d + (c^2 / r - r * d^2) / 4 + c * d / 2.
Definition rate r w m := 4 * r + 1 / w + (2 * w * (1 - r) - 1)^2 / (w * m).

(* Three squares, and the inequality of Cauchy and Schwarz with what it leaves written out. *)
Theorem spam r w s2 d e c (m := 2 * w * (1 - r) - 1 - 4 * w^2 * s2) :
  0 < r -> 0 < w -> 0 < m -> (d + e + c)^2 <= rate r w m * (drop r d e c + w * (e^2 - s2 * d^2)).
Proof.
  intros Hr Hw Hm.
  set (k := 1 - r - 1 / (2 * w)); set (u := c + r * d); set (v := e + d / (2 * w)).
  assert (Hs : s2 = (2 * w * (1 - r) - 1 - m) / (4 * w^2)) by (unfold m; field; lra).
  assert (E : rate r w m * (drop r d e c + w * (e^2 - s2 * d^2)) - (d + e + c)^2 =
    (u / w - 4 * r * v)^2 * (w / (4 * r)) +
    (4 * w / m * k * u - 4 * r * d)^2 * (m / (16 * r * w)) +
    (4 * w / m * k * v - d / w)^2 * (m / 4)).
  { rewrite Hs; unfold rate, drop, u, v, k; clearbody m; field; repeat split; lra. }
  assert (0 <= w / (4 * r)) by (apply Rlt_le, Rdiv_lt_0_compat; lra).
  assert (0 <= m / (16 * r * w)) by (apply Rlt_le, Rdiv_lt_0_compat; [| repeat apply Rmult_lt_0_compat]; lra).
  cut (0 <= rate r w m * (drop r d e c + w * (e^2 - s2 * d^2)) - (d + e + c)^2); [lra |].
  rewrite E; repeat apply Rplus_le_le_0_compat; apply Rmult_le_pos; auto using pow2_ge_0; lra.
Qed.

(* The paper's case: gamma delta = 1/4 and p >= 96 r^2/(96 r^2 + B), whose drift is at most 1/96, has R <= 2.6, not 32. *)
Theorem quarter d e c :
  (d + e + c)^2 <= 2.6 * (drop (1/4) d e c + 3/4 * (e^2 - 1/96 * d^2)).
Proof.
  assert (H := spam (1/4) (3/4) (1/96) d e c ltac:(lra) ltac:(lra) ltac:(lra)); unfold rate in H.
  set (x := drop _ _ _ _ + _) in *.
  assert (0 <= x); [|nra].
  assert (x = (c + d / 4)^2 + 3 / 4 * (e + 2 / 3 * d)^2 + 13 / 384 * d^2) as -> by (unfold x, drop; field).
  pose proof (pow2_ge_0 (c + d / 4)); pose proof (pow2_ge_0 (e + 2 / 3 * d)); pose proof (pow2_ge_0 d); lra.
Qed.

(* A deviation from the mean of the clients' steps in SPAM-PPA, where f is rho-weakly convex and a = gamma rho. *)
Theorem deviation r a d c :
  0 < r -> 0 < 1 - r - a ->
  (d + c)^2 <= (4 * r + 2 * (1 - r)^2 / (1 - r - a)) * (drop r d 0 c - a * d^2 / 2).
Proof.
  intros Hr Ha.
  assert (E : (4 * r + 2 * (1 - r)^2 / (1 - r - a)) * (drop r d 0 c - a * d^2 / 2) - (d + c)^2 =
    (2 * (1 - r) / (1 - r - a) * (c + r * d) - 4 * r * d)^2 * ((1 - r - a) / (8 * r))).
  { unfold drop; field; lra. }
  assert (0 <= (1 - r - a) / (8 * r)) by (apply Rlt_le, Rdiv_lt_0_compat; lra).
  match type of E with ?x - ?y = _ => cut (0 <= x - y); [lra |] end.
  rewrite E; apply Rmult_le_pos; auto using pow2_ge_0.
Qed.

Print Assumptions spam.
